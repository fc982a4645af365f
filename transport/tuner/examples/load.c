/* Loads the tuner plugin as NCCL does: dlopen, the symbol of each version, init, questions, end.
 *
 *   load LIBRARY RANKS HOSTS             asks all versions, one line an answer
 *   load LIBRARY RANKS HOSTS CALLS       asks version 4 so often, to count what a call costs
 *
 * The declarations restate the interface; they are checked against nothing of the plugin but its behaviour.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHMS 7
#define PROTOCOLS 3

typedef void (*log_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct domains { int count, least, most; };
/* Doubles only; NCCL 2.28 has 144 of them. */
struct constants { double all[144]; };

typedef int (*init_t)(size_t ranks, size_t hosts, log_t log, void **context);
typedef int (*init_v5_t)(void **context, uint64_t communicator, size_t ranks, size_t hosts, log_t log,
                         struct domains *domains, struct constants *constants);
typedef int (*end_t)(void *context);

struct v2 {
  const char *name;
  init_t init;
  int (*ask)(void *context, int function, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
             int *protocol, int *channels);
  end_t end;
};
struct v3 {
  const char *name;
  init_t init;
  int (*ask)(void *context, int function, size_t bytes, int pipelined, float **costs, int algorithms, int protocols,
             int *channels);
  end_t end;
};
typedef int (*ask_v4_t)(void *context, int function, size_t bytes, int pipelined, float **costs, int algorithms,
                        int protocols, int registered, int *channels);
struct v4 {
  const char *name;
  init_t init;
  ask_v4_t ask;
  end_t end;
};
struct v5 {
  const char *name;
  init_v5_t init;
  ask_v4_t ask;
  end_t end;
};
struct v6 {
  const char *name;
  init_v5_t init;
  ask_v4_t ask;
  end_t end;
  int (*chunk_size)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels, size_t *size);
};

static int logged;

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)file, (void)line;
  va_list values;
  va_start(values, format);
  fprintf(stderr, "log %d %lu: ", level, flags);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  va_end(values);
  logged++;
}

static void fail(const char *what) {
  fprintf(stderr, "load: %s\n", what);
  exit(1);
}

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) fail(name);
  return found;
}

static const char *const functions[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce", "sendrecv"};
static const size_t sizes[] = {8, 65536, 65537, (size_t)1 << 30, (size_t)1 << 40};

/* NCCL's costs before the plugin is asked: microseconds, with tree, simple ruled out. */
static void fill(float costs[ALGORITHMS][PROTOCOLS]) {
  for (int a = 0; a < ALGORITHMS; a++)
    for (int p = 0; p < PROTOCOLS; p++) costs[a][p] = 10.0f + (float)(a * PROTOCOLS + p);
  costs[0][2] = -1.0f;
}

/* What became of the table: the cell that is 0, and that all others are as they were. */
static void report(const char *version, int function, size_t bytes, int registered, float costs[ALGORITHMS][PROTOCOLS],
                   int channels) {
  float before[ALGORITHMS][PROTOCOLS];
  int chosen = -1, others = 0;
  fill(before);
  for (int a = 0; a < ALGORITHMS; a++)
    for (int p = 0; p < PROTOCOLS; p++) {
      if (costs[a][p] == before[a][p]) continue;
      if (costs[a][p] == 0.0f && chosen < 0) chosen = a * PROTOCOLS + p;
      else others++;
    }
  if (others) fail("other cells changed, too");
  printf("%s %s %zu registered=%d: ", version, functions[function], bytes, registered);
  if (chosen < 0) printf("as NCCL has it");
  else printf("algorithm %d protocol %d", chosen / PROTOCOLS, chosen % PROTOCOLS);
  printf(" channels %d\n", channels);
}

static void ask_v4(const char *version, ask_v4_t ask, void *context) {
  for (int function = 0; function < 6; function++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (int registered = 0; registered < 2; registered++) {
        float costs[ALGORITHMS][PROTOCOLS];
        int channels = 0;
        fill(costs);
        if (ask(context, function, sizes[s], 1, (float **)costs, ALGORITHMS, PROTOCOLS, registered, &channels) != 0)
          fail("an answer is no success");
        report(version, function, sizes[s], registered, costs, channels);
      }
}

int main(int argc, char **argv) {
  if (argc < 4) fail("usage: load LIBRARY RANKS HOSTS [CALLS]");
  size_t ranks = strtoull(argv[2], NULL, 10), hosts = strtoull(argv[3], NULL, 10);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail(dlerror());
  void *context;
  struct v4 *v4 = symbol(library, "ncclTunerPlugin_v4");

  if (argc > 4) {
    long calls = strtol(argv[4], NULL, 10);
    float costs[ALGORITHMS][PROTOCOLS];
    int channels;
    if (v4->init(ranks, hosts, NULL, &context) != 0) fail("init");
    fill(costs);
    for (long call = 0; call < calls; call++)
      v4->ask(context, 4, (size_t)call, 1, (float **)costs, ALGORITHMS, PROTOCOLS, 0, &channels);
    return v4->end(context);
  }

  struct v2 *v2 = symbol(library, "ncclTunerPlugin_v2");
  if (strcmp(v2->name, "topod") != 0 || v2->init(ranks, hosts, log_line, &context) != 0) fail("version 2");
  for (int function = 0; function < 6; function++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      int algorithm = -1, protocol = -1, channels = 0;
      if (v2->ask(context, function, sizes[s], 0, 0, 1, &algorithm, &protocol, &channels) != 0)
        fail("an answer is no success");
      printf("v2 %s %zu: algorithm %d protocol %d channels %d\n", functions[function], sizes[s], algorithm, protocol,
             channels);
    }
  if (v2->end(context) != 0) fail("version 2 ends");

  struct v3 *v3 = symbol(library, "ncclTunerPlugin_v3");
  if (strcmp(v3->name, "topod") != 0 || v3->init(ranks, hosts, log_line, &context) != 0) fail("version 3");
  for (int function = 0; function < 6; function++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      float costs[ALGORITHMS][PROTOCOLS];
      int channels = 0;
      fill(costs);
      if (v3->ask(context, function, sizes[s], 1, (float **)costs, ALGORITHMS, PROTOCOLS, &channels) != 0)
        fail("an answer is no success");
      report("v3", function, sizes[s], 0, costs, channels);
    }
  if (v3->end(context) != 0) fail("version 3 ends");

  if (strcmp(v4->name, "topod") != 0 || v4->init(ranks, hosts, log_line, &context) != 0) fail("version 4");
  ask_v4("v4", v4->ask, context);
  if (v4->end(context) != 0) fail("version 4 ends");

  struct domains domains = {1, (int)ranks, (int)ranks};
  struct constants constants, before;
  for (int at = 0; at < 144; at++) constants.all[at] = at;
  before = constants;
  struct v5 *v5 = symbol(library, "ncclTunerPlugin_v5");
  if (strcmp(v5->name, "topod") != 0 || v5->init(&context, 7, ranks, hosts, log_line, &domains, &constants) != 0)
    fail("version 5");
  ask_v4("v5", v5->ask, context);
  if (v5->end(context) != 0) fail("version 5 ends");

  struct v6 *v6 = symbol(library, "ncclTunerPlugin_v6");
  if (strcmp(v6->name, "topod") != 0 || v6->init(&context, 7, ranks, hosts, log_line, &domains, &constants) != 0)
    fail("version 6");
  ask_v4("v6", v6->ask, context);
  if (v6->chunk_size != NULL) fail("sizes of chunks are NCCL's");
  if (v6->end(context) != 0) fail("version 6 ends");

  /* Two communicators at once; an end without a beginning; no place for a context; a smaller table, of an older NCCL. */
  void *other;
  if (v5->init(&context, 1, ranks, hosts, NULL, NULL, NULL) != 0) fail("a second communicator");
  if (v5->init(&other, 2, ranks, hosts, NULL, NULL, NULL) != 0 || other == context) fail("a third communicator");
  float small[6 * PROTOCOLS];
  int channels = 0;
  for (int at = 0; at < 6 * PROTOCOLS; at++) small[at] = -1.0f;
  if (v5->ask(other, 4, 8, 1, (float **)small, 6, PROTOCOLS, 0, &channels) != 0 || channels != 0)
    fail("all is ruled out, and something was chosen");
  for (int at = 0; at < 6 * PROTOCOLS; at++)
    if (small[at] != -1.0f) fail("what is ruled out was chosen");
  if (v5->ask(other, -1, 8, -1, NULL, -1, -1, 0, NULL) != 0) fail("a question that makes no sense");
  if (v5->ask(NULL, 4, 8, 1, (float **)small, 6, PROTOCOLS, 0, &channels) != 0) fail("a question without a context");
  if (v5->end(context) != 0 || v5->end(other) != 0 || v5->end(NULL) != 0) fail("ends");
  if (v4->init(ranks, hosts, NULL, NULL) != 0) fail("no place for a context");
  if (memcmp(&constants, &before, sizeof before) != 0) fail("constants of NCCL's model changed");
  printf("logged %d\n", logged);
  return 0;
}
