"""Compares the module with its stub: classes, their members, and what each method takes."""

import ast
import inspect
import sys

import topod


def stub(path):
    """Classes of a stub: their members, and the arguments of methods."""
    classes = {}
    for node in ast.parse(open(path).read()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        members = {}
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                a = item.args
                members[item.name] = [arg.arg for arg in a.posonlyargs + a.args + a.kwonlyargs]
            elif isinstance(item, ast.AnnAssign):
                members[item.target.id] = None
        classes[node.name] = members
    return classes


def check(name, wanted):
    found = getattr(topod, name)
    if issubclass(found, Exception):
        return
    public = {n for n in vars(found) if not n.startswith("_")}
    public |= {n for n in ("__len__", "__enter__", "__exit__") if n in vars(found)}
    listed = {n for n in wanted if n != "__init__"}
    assert public == listed, f"{name}: {sorted(public ^ listed)}"
    for member in public - {"__len__", "__enter__", "__exit__"}:
        attribute = inspect.getattr_static(found, member)
        if isinstance(attribute, staticmethod):
            attribute = attribute.__func__
        text = getattr(getattr(found, member), "__text_signature__", None)
        if text is None:
            continue
        taken = [p.strip().lstrip("*$") for p in text.strip("()").split(",")]
        taken = [p.split("=")[0] for p in taken if p and p != "/" and p != "settings"]
        assert taken == wanted[member], f"{name}.{member}: {taken} in the module, {wanted[member]} in the stub"


classes = stub(sys.argv[1])
module = {n for n in dir(topod) if not n.startswith("_")}
assert module == set(classes), sorted(module ^ set(classes))
for name, members in classes.items():
    check(name, members)
print("the stub is complete")
