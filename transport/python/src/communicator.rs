//! Communicators.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PySlice};
use topology::Rank;
use transport::even::full_plan;
use transport::{Call, Driver, ElementType, Options, ReduceOp, Rendezvous};

use crate::argument::Argument;
use crate::buffer::Buffer;
use crate::error::{ConnectError, Error, of_connect, of_setting, of_transport};
use crate::operation::{Arrays, Operation, Stats};
use crate::plan::Plan;

/// One rank's part of a group.
///
/// Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank, and the
/// communicator is of no further use. With `async_op`, an operation is started and returned.
#[pyclass(frozen, module = "topod")]
#[derive(Debug)]
pub(crate) struct Communicator {
    /// `None` once closed.
    driver: Mutex<Option<Arc<Driver>>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    size: u32,
}

/// The environment's settings, and over them those that Python gives: numbers, texts, truths, lists of texts.
fn options(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::for_all();
    options.set_from_environment().map_err(of_setting)?;
    for (name, value) in settings.into_iter().flatten() {
        let text = if value.is_instance_of::<PyBool>() {
            if value.extract()? { "1".to_owned() } else { "0".to_owned() }
        } else if let Ok(list) = value.extract::<Vec<String>>() {
            list.join(",")
        } else {
            value.str()?.extract()?
        };
        options.set(&name.extract::<String>()?, &text).map_err(of_setting)?;
    }
    transport_daemon::attach(&mut options);
    Ok(options)
}

fn op(name: &str) -> PyResult<ReduceOp> {
    name.parse().map_err(|error| PyValueError::new_err(format!("{error}")))
}

impl Communicator {
    fn wrap(made: transport::Communicator, progress_thread: bool) -> PyResult<Self> {
        let rank = made.rank().0;
        let size = u32::try_from(made.ranks()).unwrap_or(u32::MAX);
        let driver = Arc::new(Driver::new(made, progress_thread)?);
        Ok(Self { driver: Mutex::new(Some(driver)), rank, size })
    }

    fn driver(&self) -> PyResult<Arc<Driver>> {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).clone();
        driver.ok_or_else(|| PyRuntimeError::new_err("the communicator is closed"))
    }

    /// Calls the communicator with the interpreter's lock free.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut transport::Communicator) -> Result<T, transport::TransportError> + Send,
    ) -> PyResult<T> {
        let driver = self.driver()?;
        py.detach(|| driver.with(call)).map_err(of_transport)
    }

    /// Runs or starts an operation on arrays.
    fn operate<'py>(
        &self,
        py: Python<'py>,
        element: ElementType,
        call: Call,
        arrays: Arrays,
        async_op: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !async_op {
            // SAFETY: The arrays are lent until the call is over, which is when they are dropped.
            let stats =
                self.with(py, move |communicator| unsafe { communicator.run_at(element, call) })?;
            drop(arrays);
            return Ok(Bound::new(py, Stats::from(stats))?.into_any());
        }
        let driver = self.driver()?;
        let started = py.detach(|| {
            driver.with(|communicator| {
                // SAFETY: The communicator keeps the arrays until the operation is done.
                unsafe { communicator.start_at(element, call, arrays) }
            })
        });
        let operation = Operation::new(driver, started.map_err(of_transport)?);
        Ok(Bound::new(py, operation)?.into_any())
    }

    fn group(
        &self,
        py: Python<'_>,
        planner: Option<Py<PyAny>>,
        progress_thread: bool,
        make: impl FnOnce(
            &mut transport::Communicator,
            &mut dyn FnMut(&[Rank]) -> topology::Plan,
        ) -> Result<Option<transport::Communicator>, transport::ConnectError>
        + Send,
    ) -> PyResult<Option<Self>> {
        let driver = self.driver()?;
        let (made, failed) = py.detach(|| {
            driver.with(|communicator| {
                let mut failed = None;
                let mut plan = |ranks: &[Rank]| {
                    let even = full_plan(u32::try_from(ranks.len()).unwrap_or(u32::MAX), 2);
                    let Some(planner) = &planner else { return even };
                    let numbers: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
                    let asked = Python::attach(|py| {
                        let made = planner.bind(py).call1((numbers,))?;
                        let plan: PyRef<'_, Plan> = made.extract().map_err(PyErr::from)?;
                        Ok::<_, PyErr>(plan.plan.clone())
                    });
                    asked.unwrap_or_else(|error| {
                        failed = Some(error);
                        // The other ranks are not left waiting: they hold another plan, and refuse this one's.
                        let mut refused = even;
                        refused
                            .assumptions
                            .push(format!("the planner of rank {} failed", self.rank));
                        refused
                    })
                };
                let made = make(communicator, &mut plan);
                (made, failed)
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        made.map_err(of_connect)?.map(|made| Self::wrap(made, progress_thread)).transpose()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

#[pymethods]
impl Communicator {
    /// Meets the other ranks of the plan. The rank is the launcher's where the rendezvous is env://.
    #[new]
    #[pyo3(signature = (plan, rank=None, rendezvous="env://", progress_thread=false, **settings))]
    fn new(
        py: Python<'_>,
        plan: &Plan,
        rank: Option<u32>,
        rendezvous: &str,
        progress_thread: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = options(settings)?;
        let place: Rendezvous =
            rendezvous.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
        let own = place.own_place();
        let rank = rank.map(Rank).or_else(|| own.map(|own| own.rank));
        let rank =
            rank.ok_or_else(|| PyValueError::new_err("only env:// says which rank this is"))?;
        if let Some(own) = own.filter(|own| own.ranks as usize != plan.plan.ranks.len()) {
            let words = format!(
                "the launcher started {} ranks and the plan has {}",
                own.ranks,
                plan.plan.ranks.len()
            );
            return Err(ConnectError::new_err(words));
        }
        let made = py.detach(|| transport::Communicator::new(&plan.plan, rank, &place, options));
        Self::wrap(made.map_err(of_connect)?, progress_thread)
    }

    /// Combines the arrays of all ranks, element by element; the result is in `out`, else in place.
    #[pyo3(signature = (array, out=None, op="sum", async_op=false, dtype=None))]
    fn all_reduce<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        op: &str,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = self::op(op)?;
        let (input, output) = in_and_out(array, out, dtype)?;
        let place = output.as_ref().unwrap_or(&input).place()?;
        let call = Call::AllReduce { input: input.place()?, output: place, op };
        let element = input.element;
        self.operate(py, element, call, both(input, output), async_op)
    }

    /// Combines many arrays of one element type, each in place, by few operations: those that fit are packed into buckets of
    /// at most so many bytes.
    #[pyo3(signature = (arrays, op="sum", bucket_bytes=26_214_400, dtype=None))]
    fn all_reduce_fused(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &str,
        bucket_bytes: usize,
        dtype: Option<&str>,
    ) -> PyResult<Stats> {
        let op = self::op(op)?;
        let arrays = arrays.iter().map(|array| Argument::write(array, dtype));
        let arrays: Arrays = arrays.collect::<PyResult<_>>()?;
        let element = arrays.first().map_or(ElementType::F32, |array| array.element);
        for array in arrays.iter().skip(1) {
            arrays[0].same_type(array)?;
        }
        let places = arrays.iter().map(Argument::place).collect::<PyResult<Vec<_>>>()?;
        let stats = self.with(py, move |communicator| {
            // SAFETY: The arrays are lent until the call is over, which is when they are dropped.
            unsafe { communicator.all_reduce_fused_at(element, &places, op, bucket_bytes) }
        })?;
        drop(arrays);
        Ok(stats.into())
    }

    /// Gathers every rank's shard into `out`, by rank; in place where the shard is at its place in it.
    #[pyo3(signature = (shard, out, async_op=false, dtype=None))]
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        shard: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (input, output) = apart(shard, out, dtype)?;
        let call = Call::AllGather { shard: input.place()?, output: output.place()? };
        self.operate(py, input.element, call, vec![input, output], async_op)
    }

    /// Combines the arrays of all ranks and leaves each its shard of the result in `out`; in place where that is the shard's
    /// place in the array.
    #[pyo3(signature = (array, out, op="sum", async_op=false, dtype=None))]
    fn reduce_scatter<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        op: &str,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (input, output) = apart(array, out, dtype)?;
        let (place, shard) = (input.place()?, output.place()?);
        let call = Call::ReduceScatter { input: place, shard, op: self::op(op)? };
        self.operate(py, input.element, call, vec![input, output], async_op)
    }

    /// Every rank's array becomes that of the root.
    #[pyo3(signature = (array, root=0, async_op=false, dtype=None))]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        root: u32,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Argument::write(array, dtype)?;
        let call = Call::Broadcast { buffer: array.place()?, root: Rank(root) };
        self.operate(py, array.element, call, vec![array], async_op)
    }

    /// Combines the arrays of all ranks; the result is in the root's `out`, else in its array.
    #[pyo3(signature = (array, out=None, op="sum", root=0, async_op=false, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        op: &str,
        root: u32,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = self::op(op)?;
        let is_root = self.rank == root;
        let (input, output) = if is_root {
            in_and_out(array, out, dtype)?
        } else {
            (Argument::read(array, dtype)?, None)
        };
        let place = output.as_ref().unwrap_or(&input).place()?;
        let call = Call::Reduce { input: input.place()?, output: place, op, root: Rank(root) };
        let element = input.element;
        self.operate(py, element, call, both(input, output), async_op)
    }

    /// Gathers every rank's shard into the root's `out`. `count`, the number of elements in all, is needed where the number of
    /// ranks does not divide it.
    #[pyo3(signature = (shard, out=None, root=0, count=None, async_op=false, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        shard: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        root: u32,
        count: Option<usize>,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let input = Argument::read(shard, dtype)?;
        let output = self.at_root(root, out, "out", dtype)?;
        let count = count.unwrap_or(input.count * self.size as usize);
        let place = output.as_ref().unwrap_or(&input).place()?;
        let shard = input.place()?;
        let call = Call::Gather { shard, output: place, count, root: Rank(root) };
        let element = input.element;
        self.operate(py, element, call, both(input, output), async_op)
    }

    /// Leaves every rank its shard of the root's array in `out`. `count`, the number of elements in all, is needed where the
    /// number of ranks does not divide it.
    #[pyo3(signature = (out, array=None, root=0, count=None, async_op=false, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        out: &Bound<'py, PyAny>,
        array: Option<&Bound<'py, PyAny>>,
        root: u32,
        count: Option<usize>,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let output = Argument::write(out, dtype)?;
        let input = if self.rank == root {
            let array = array.ok_or_else(|| PyTypeError::new_err("the root has no array"))?;
            Some(Argument::read(array, dtype)?)
        } else {
            None
        };
        let count = count.unwrap_or(output.count * self.size as usize);
        let place = input.as_ref().unwrap_or(&output).place()?;
        let shard = output.place()?;
        let call = Call::Scatter { input: place, shard, count, root: Rank(root) };
        let element = output.element;
        self.operate(py, element, call, both(output, input), async_op)
    }

    /// Sends the r-th part of the array to rank r, and leaves what comes from rank r in the r-th part of `out`; the parts are
    /// equal, or as long as `sends` and `receives` say.
    #[pyo3(signature = (array, out, sends=None, receives=None, async_op=false, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn all_to_all<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        sends: Option<Vec<usize>>,
        receives: Option<Vec<usize>>,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (input, output) = apart(array, out, dtype)?;
        let places = (input.place()?, output.place()?);
        let call = match (sends, receives) {
            (None, None) => Call::AllToAll { input: places.0, output: places.1 },
            (Some(sends), Some(receives)) => {
                let ranks = self.size as usize;
                if sends.len() != ranks || receives.len() != ranks {
                    let words =
                        format!("sends and receives have a number for each of {ranks} ranks");
                    return Err(PyValueError::new_err(words));
                }
                Call::AllToAllUneven { input: places.0, sends, output: places.1, receives }
            }
            _ => return Err(PyTypeError::new_err("sends and receives go together")),
        };
        self.operate(py, input.element, call, vec![input, output], async_op)
    }

    /// Sends to one rank, which receives as many elements of the same type.
    #[pyo3(signature = (array, to, async_op=false, dtype=None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        to: u32,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Argument::read(array, dtype)?;
        let call = Call::Send { data: array.place()?, to: Rank(to) };
        self.operate(py, array.element, call, vec![array], async_op)
    }

    /// Receives from one rank.
    #[pyo3(signature = (array, source, async_op=false, dtype=None))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        source: u32,
        async_op: bool,
        dtype: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Argument::write(array, dtype)?;
        let call = Call::Receive { data: array.place()?, from: Rank(source) };
        self.operate(py, array.element, call, vec![array], async_op)
    }

    /// Receives from whichever rank sends first; returns which.
    #[pyo3(signature = (array, dtype=None))]
    fn receive_any(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        dtype: Option<&str>,
    ) -> PyResult<u32> {
        let array = Argument::write(array, dtype)?;
        let (element, place) = (array.element, array.place()?);
        // SAFETY: The array is lent until the call is over.
        let sender = self
            .with(py, move |communicator| unsafe { communicator.receive_any_at(element, place) })?;
        drop(array);
        Ok(sender.0)
    }

    /// Gives operations that are started from now on a priority, from 0 up to one less than the setting `priorities`. Every rank calls
    /// it at the same place among its operations. Those of a higher priority pass lower ones that are in flight.
    fn set_priority(&self, py: Python<'_>, priority: u32) -> PyResult<()> {
        self.with(py, move |communicator| communicator.set_priority(priority))
    }

    /// Returns once every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |communicator| communicator.barrier().map(|_| ()))
    }

    /// A barrier that says who does not come within so many seconds: `MissingError` on every rank that called.
    fn monitored_barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let limit = Duration::try_from_secs_f64(timeout)
            .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        self.with(py, move |communicator| communicator.monitored_barrier(limit))
    }

    /// Makes one group of all ranks of each colour, in the order of `key` and then of rank; `None` for ranks without a colour.
    /// `planner` makes the plan of a group from the list of its ranks; without one, it is even.
    #[pyo3(signature = (colour, key=0, planner=None, progress_thread=false, **settings))]
    fn split(
        &self,
        py: Python<'_>,
        colour: Option<u32>,
        key: i64,
        planner: Option<Py<PyAny>>,
        progress_thread: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Self>> {
        let options = options(settings)?;
        self.group(py, planner, progress_thread, move |communicator, plan| {
            communicator.split(colour, key, plan, options)
        })
    }

    /// Makes one group of each list of ranks; `None` for a rank in no list. Every rank calls it with the same lists.
    #[pyo3(signature = (lists, planner=None, progress_thread=false, **settings))]
    fn subgroups(
        &self,
        py: Python<'_>,
        lists: Vec<Vec<u32>>,
        planner: Option<Py<PyAny>>,
        progress_thread: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Self>> {
        let options = options(settings)?;
        let lists: Vec<Vec<Rank>> =
            lists.into_iter().map(|list| list.into_iter().map(Rank).collect()).collect();
        self.group(py, planner, progress_thread, move |communicator, plan| {
            communicator.subgroup(&lists, plan, options)
        })
    }

    /// After a `FailedError`: makes a group of the ranks that live, in their old order. Every rank that got the failure calls it,
    /// once; `ConnectError` where so many are silent that they may be a group of their own, or where this rank is the one at fault.
    #[pyo3(signature = (planner=None, progress_thread=false, **settings))]
    fn shrink(
        &self,
        py: Python<'_>,
        planner: Option<Py<PyAny>>,
        progress_thread: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = options(settings)?;
        let group = self.group(py, planner, progress_thread, move |communicator, plan| {
            communicator.shrink(plan, options).map(Some)
        })?;
        group.ok_or_else(|| Error::new_err("this rank is in no group"))
    }

    /// Zeroed memory that operations use where it lies, where all ranks share a host.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
        let count = bytes.div_ceil(8).max(1);
        let memory = self.with(py, move |communicator| communicator.allocate::<f64>(count))?;
        Ok(Buffer::new(memory, bytes))
    }

    /// A NumPy array of zeros in such memory.
    #[pyo3(signature = (shape, dtype="float32"))]
    fn zeros<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = py.import("numpy")?;
        let dtype = numpy.call_method1("dtype", (dtype,))?;
        let size: usize = dtype.getattr("itemsize")?.extract()?;
        let count: usize =
            numpy.call_method1("prod", (shape,))?.call_method0("__int__")?.extract()?;
        let bytes = count
            .checked_mul(size)
            .ok_or_else(|| PyValueError::new_err("more bytes than there can be"))?;
        let buffer = Bound::new(py, self.allocate(py, bytes)?)?;
        numpy.call_method1("frombuffer", (buffer, dtype))?.call_method1("reshape", (shape,))
    }

    /// The slice of an array of `count` elements that is the rank's shard (this rank's by default), as the collectives that
    /// gather and scatter cut them.
    #[pyo3(signature = (count, rank=None))]
    fn shard<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        rank: Option<u32>,
    ) -> PyResult<Bound<'py, PySlice>> {
        let rank = rank.unwrap_or(self.rank);
        if rank >= self.size {
            return Err(PyValueError::new_err(format!("rank {rank} is none of {}", self.size)));
        }
        let shard = transport::schedule::shard(count, Rank(rank), self.size as usize);
        Ok(PySlice::new(py, isize::try_from(shard.start)?, isize::try_from(shard.end)?, 1))
    }

    /// Leaves the group. Operations in flight keep it until they are done.
    fn close(&self, py: Python<'_>) {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A progress thread that ends may have to give arrays back first.
        py.detach(|| drop(driver));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<topod.Communicator rank {} of {}>", self.rank, self.size)
    }
}

impl Communicator {
    /// The root's array; nothing elsewhere.
    fn at_root(
        &self,
        root: u32,
        array: Option<&Bound<'_, PyAny>>,
        what: &str,
        dtype: Option<&str>,
    ) -> PyResult<Option<Argument>> {
        if self.rank != root {
            return Ok(None);
        }
        let array = array.ok_or_else(|| PyTypeError::new_err(format!("the root has no {what}")))?;
        Argument::write(array, dtype).map(Some)
    }
}

/// Input and output, which may be one.
fn in_and_out(
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    dtype: Option<&str>,
) -> PyResult<(Argument, Option<Argument>)> {
    let Some(out) = out else { return Ok((Argument::write(array, dtype)?, None)) };
    let (input, output) = apart(array, out, dtype)?;
    Ok((input, Some(output)))
}

fn apart(
    array: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    dtype: Option<&str>,
) -> PyResult<(Argument, Argument)> {
    let (input, output) = (Argument::read(array, dtype)?, Argument::write(out, dtype)?);
    input.same_type(&output)?;
    Ok((input, output))
}

fn both(one: Argument, other: Option<Argument>) -> Arrays {
    std::iter::once(one).chain(other).collect()
}
