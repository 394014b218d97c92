/* The runtime around a compiled program: memory, threads, and the table of addresses it runs on.
 *
 * NAME_parts.h, written beside this file, has the program's words, its kernels and its ends.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(_WIN32)
#include <malloc.h>
extern __declspec(dllimport) void __stdcall GetCurrentThreadStackLimits(uintptr_t *, uintptr_t *);
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/resource.h>
#include <sys/syscall.h>
extern long syscall(long, ...);
extern unsigned long getauxval(unsigned long);
#endif

#include "NAME.h"
#include "gears.h"

#include "NAME_parts.h"

#define EXPORT __attribute__((visibility("default")))
enum { LINE = 64, STACK_BYTES = 16 << 20, STACK_LEAST = 3 << 20, SPINS_FREE = 3000, SPINS_CROWDED = 20 };

static _Thread_local char message[256];

static int failed(int status, const char *text) {
  snprintf(message, sizeof message, "NAME: %s", text);
  return status;
}

EXPORT const char *NAME_error(void) { return message; }
EXPORT const char *NAME_about(void) { return ABOUT; }
EXPORT size_t NAME_scratch_bytes(void) { return ARENA_BYTES; }
EXPORT size_t NAME_weight_bytes(void) { return WEIGHT_BYTES; }

/* -- the processor ------------------------------------------------------------------------------ */

#if defined(__x86_64__)
/* Whether cpuid tells of a feature, and the system keeps its registers: these bits of XCR0 are set. */
static inline int has(unsigned leaf, unsigned part, int number, int bit, uint64_t kept) {
  unsigned found[4], low = 0, high = 0;
#if defined(__APPLE__)
  kept &= 0x6; /* the system sets other bits when a thread uses the registers for the first time */
#endif
  if (kept) {
    if (!__get_cpuid(1, found, found + 1, found + 2, found + 3) || !(found[2] >> 27 & 1)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((((uint64_t)high << 32 | low) & kept) != kept) return 0;
  }
  if (!__get_cpuid_count(leaf, part, found, found + 1, found + 2, found + 3)) return 0;
  return found[number] >> bit & 1;
}
#endif

#if defined(__APPLE__)
static inline int tells(const char *name) {
  int value = 0;
  size_t size = sizeof value;
  return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}
#endif

/* -- memory ------------------------------------------------------------------------------------ */

static void *system_allocate(void *context, size_t nbytes, size_t alignment) {
  (void)context;
#if defined(_WIN32)
  return _aligned_malloc(nbytes, alignment);
#else
  void *memory = NULL;
  return posix_memalign(&memory, alignment, nbytes) ? NULL : memory;
#endif
}

static void system_release(void *context, void *memory, size_t nbytes) {
  (void)context;
  (void)nbytes;
#if defined(_WIN32)
  _aligned_free(memory);
#else
  free(memory);
#endif
}

static void *allocate(const NAME_allocator *from, size_t nbytes) {
  return from->allocate(from->context, nbytes ? nbytes : 1, LINE);
}

static void release(const NAME_allocator *from, void *memory, size_t nbytes) {
  if (memory) from->release(from->context, memory, nbytes ? nbytes : 1);
}

/* -- what instances share: the program with its kernels in place, and the threads --------------- */

typedef struct {
  atomic_int users;
  NAME_allocator allocator;
  int threads;
  char *pool;        /* see the layout in NAME_parts.h */
  int64_t *starts;   /* a pair for each worker: the pool, and its number */
  int64_t words[WORDS];
} Core;

static int *pool_int(const Core *core, int offset) { return (int *)(core->pool + offset); }

/* A thread with room for kernels; signals stay the caller's. Returns 0 where there is one. */
static int start_thread(pthread_t *thread, int state, void *(*work)(void *), void *given) {
  pthread_attr_t attributes;
#if !defined(_WIN32)
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
#endif
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, state);
  int status = pthread_create(thread, &attributes, work, given);
  pthread_attr_destroy(&attributes);
#if !defined(_WIN32)
  pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
  return status;
}

static void start_workers(Core *core, int wanted) {
  for (core->threads = 1; core->threads < wanted; core->threads++) {
    pthread_t thread;
    int64_t *start = core->starts + 2 * core->threads;
    start[0] = (int64_t)(intptr_t)core->pool;
    start[1] = core->threads;
    *pool_int(core, POOL_LIVE) += 1;
    if (start_thread(&thread, PTHREAD_CREATE_DETACHED, NAME_rt_worker, start)) {
      *pool_int(core, POOL_LIVE) -= 1;
      break;
    }
  }
  *(int64_t *)(core->pool + POOL_THREADS) = core->threads;
}

static void core_release(Core *core) {
  NAME_allocator from = core->allocator;
  if (atomic_fetch_sub(&core->users, 1) != 1) return;
  if (core->pool) {
    NAME_rt_stop(core->pool);
    while (__atomic_load_n(pool_int(core, POOL_LIVE), __ATOMIC_ACQUIRE) > 0) usleep(100);
  }
  release(&from, core->pool, POOL_BYTES);
  release(&from, core->starts, sizeof(int64_t) * 2 * MOST_THREADS);
  release(&from, core, sizeof *core);
}

static Core *core_new(int threads, const NAME_allocator *from) {
#if defined(_WIN32)
  long cores = pthread_num_processors_np();
#else
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
#endif
  int available = cores > 0 ? (int)cores : 1;
  int wanted = threads ? threads : available;
  Core *core = allocate(from, sizeof *core);
  if (!core) return NULL;
  memset(core, 0, sizeof *core);
  core->allocator = *from;
  atomic_init(&core->users, 1);
  memcpy(core->words, program_words, sizeof program_words);
  for (size_t i = 0; i < PLACES; i++) {
    int64_t *place = core->words + kernel_places[i];
    *place = (int64_t)(intptr_t)kernels[*place];
  }
  core->pool = allocate(from, POOL_BYTES);
  core->starts = allocate(from, sizeof(int64_t) * 2 * MOST_THREADS);
  if (!core->pool || !core->starts) {
    release(from, core->pool, POOL_BYTES);
    core->pool = NULL;
    core_release(core);
    return NULL;
  }
  memset(core->pool, 0, POOL_BYTES);
  *(int64_t *)(core->pool + POOL_SPINS) = wanted <= available ? SPINS_FREE : SPINS_CROWDED;
  start_workers(core, wanted);
  return core;
}

/* -- instances ---------------------------------------------------------------------------------- */

enum { ENDS = INPUTS + OUTPUTS };

/* A phase of an instance: the program for its extents, and the table that it runs on. */
typedef struct {
  const Gear *gear; /* NULL until there are extents */
  int64_t extents[KNOWN + 1];
  int64_t bases[BASES];
  int64_t registers[REGISTERS + 1];
} Part;

struct NAME_model {
  Core *core;
  int is_done; /* whether a run has told what data decide */
  char *arena;
  size_t arena_bytes;
  int64_t chosen[EXTENTS + 1];
  int64_t values[VALUES + 1]; /* addresses: the caller's, or own memory, which may be another's */
  int64_t dims[DIMS + 1];     /* their extents */
  size_t nbytes[VALUES + 1];  /* of results: what their program writes */
  void *own[VALUES + 1];
  size_t own_bytes[VALUES + 1];
  NAME_tensor ends[ENDS + 1];
  int64_t shapes[AXES + 1];
  int64_t tried[REGISTERS + 1];
  Part parts[PHASES];
};

static int instance(Core *core, NAME_model **made) {
  NAME_model *model = allocate(&core->allocator, sizeof *model);
  *made = NULL;
  if (!model) return failed(NAME_NO_MEMORY, "there is no memory for an instance");
  memset(model, 0, sizeof *model);
  model->core = core;
  atomic_fetch_add(&core->users, 1);
  if (!EXTENTS) {
    int status = NAME_set_extents(model, NULL, 0);
    if (status) {
      NAME_destroy(model);
      return status;
    }
  }
  *made = model;
  return NAME_OK;
}

/* -- extents ------------------------------------------------------------------------------------ */

EXPORT int NAME_extents(void) { return EXTENTS; }

EXPORT const NAME_extent *NAME_extent_of(int number) {
  return number >= 0 && number < EXTENTS ? extents_known + number : NULL;
}

/* Say what is wrong at the extents that a phase needs. */
static int told(int status, const int64_t *extents, const Phase *phase, const char *text) {
  int at = snprintf(message, sizeof message, "NAME: %s", text);
  for (int64_t i = 0; i < phase->need_count && at >= 0 && at < (int)sizeof message; i++)
    at += snprintf(message + at, sizeof message - (size_t)at, "%s%s = %lld", i ? ", " : " ",
                   extents_known[phase->needs[i]].name, (long long)extents[phase->needs[i]]);
  return status;
}

static int64_t *dims_of(NAME_model *model, int64_t value) { return model->dims + value_dims[value]; }

/* Begin or end an input or output at these extents; one of another size is to be set again. */
static void settle_end(NAME_model *model, int number, const int64_t *extents) {
  const NAME_tensor *known = number < INPUTS ? inputs + number : outputs + (number - INPUTS);
  int64_t value = number < INPUTS ? number : output_values[number - INPUTS];
  NAME_tensor *end = model->ends + number;
  int64_t *shape = model->shapes + axes_at[number];
  size_t nbytes = (size_t)item_bytes[value];
  for (int axis = 0; axis < known->ndim; axis++) {
    shape[axis] = extents[axis];
    nbytes *= (size_t)extents[axis];
  }
  if (!end->name || nbytes != end->nbytes) model->values[value] = 0;
  *end = *known;
  end->shape = shape;
  end->nbytes = nbytes;
}

/* The results of a phase at the extents of its registers. */
static void settle(NAME_model *model, const Phase *phase, const Part *part) {
  const int64_t *result = part->gear->results;
  for (int64_t v = phase->first; v < phase->first + phase->results; v++) {
    int64_t *shape = dims_of(model, v);
    size_t nbytes = (size_t)item_bytes[v];
    for (int64_t axis = 0; axis < value_axes[v]; axis++) {
      shape[axis] = part->registers[*result++];
      nbytes *= (size_t)shape[axis];
    }
    model->nbytes[v] = nbytes;
    if (value_outputs[v] >= 0) settle_end(model, INPUTS + (int)value_outputs[v], shape);
  }
}

/* Have a phase serve extents; where it fails, it is as it was. */
static int choose(NAME_model *model, const Phase *phase, const int64_t *extents) {
  Part *part = model->parts + (phase - phases);
  const Gear *gear = NULL;
  int wide = 0;
  for (int64_t i = 0; i < phase->gear_count && !gear; i++)
    if (serves(phase, gears + phase->gears + i, extents, model->tried, &wide))
      gear = gears + phase->gears + i;
  if (!gear)
    return told(NAME_BAD_EXTENT, extents, phase,
                wide ? "sizes are beyond 64 bits at" : "the model does not take");
  int64_t peak = model->tried[gear->order_count ? gear->peak : gear->least];
  if (peak < 0 || peak > gear->arena)
    return told(NAME_NO_MEMORY, extents, phase, "more scratch memory than declared is needed at");
  if (!model->arena || (size_t)peak > model->arena_bytes) {
    char *arena = allocate(&model->core->allocator, (size_t)peak);
    if (!arena) return told(NAME_NO_MEMORY, extents, phase, "there is no scratch memory for");
    release(&model->core->allocator, model->arena, model->arena_bytes);
    model->arena = arena;
    model->arena_bytes = (size_t)peak;
  }
  memcpy(part->registers, model->tried, sizeof(int64_t) * (size_t)gear->registers);
  memcpy(part->bases + phase->inputs + phase->results + 3, part->registers + gear->first,
         sizeof(int64_t) * (size_t)(gear->registers - gear->first));
  for (int64_t i = 0; i < phase->need_count; i++) part->extents[phase->needs[i]] = extents[phase->needs[i]];
  part->gear = gear;
  settle(model, phase, part);
  return NAME_OK;
}

EXPORT int NAME_set_extents(NAME_model *model, const int64_t *extents, size_t count) {
  if (!model || count != EXTENTS || (count && !extents))
    return failed(NAME_BAD_ARGUMENT, "set_extents takes a model, and a number for each extent");
  for (int i = 0; i < EXTENTS; i++) {
    const NAME_extent *known = extents_known + i;
    if (extents[i] >= known->low && extents[i] <= known->high) continue;
    snprintf(message, sizeof message, "NAME: the extent %s is %lld, and the library is for %lld to %lld",
             known->name, (long long)extents[i], (long long)known->low, (long long)known->high);
    return NAME_BAD_EXTENT;
  }
  int status = choose(model, phases, extents);
  if (status) return status;
  model->is_done = 0;
  if (count) memcpy(model->chosen, extents, sizeof(int64_t) * count);
  for (int i = 0; i < ENDS; i++) { /* Outputs of later phases are set here if all is known of them. */
    int64_t shape[MOST_AXES + 1];
    if (i >= INPUTS && (output_found[i - INPUTS] || output_values[i - INPUTS] < phases[0].first + phases[0].results))
      continue;
    for (int64_t axis = axes_at[i]; axis < axes_at[i + 1]; axis++)
      shape[axis - axes_at[i]] = axes[axis] >= 0 ? axes[axis] : extents[-1 - axes[axis]];
    settle_end(model, i, shape);
    if (i < INPUTS) memcpy(dims_of(model, i), shape, sizeof(int64_t) * (size_t)value_axes[i]);
  }
  return NAME_OK;
}

EXPORT const NAME_tensor *NAME_input_at(const NAME_model *model, int number) {
  return model && model->parts->gear && number >= 0 && number < INPUTS ? model->ends + number : NULL;
}

/* Whether the extents of an output are known by now. */
static int is_known(const NAME_model *model, int number) {
  if (!model || !model->parts->gear || number < 0 || number >= OUTPUTS) return 0;
  return model->is_done || !output_found[number];
}

EXPORT const NAME_tensor *NAME_output_at(const NAME_model *model, int number) {
  return is_known(model, number) ? model->ends + INPUTS + number : NULL;
}

/* -- instances, from outside --------------------------------------------------------------------- */

EXPORT int NAME_create(NAME_model **made, int threads, const NAME_allocator *allocator) {
  static const NAME_allocator system = {system_allocate, system_release, NULL};
  const NAME_allocator *from = allocator ? allocator : &system;
  if (!made || threads < 0 || threads > MOST_THREADS)
    return failed(NAME_BAD_ARGUMENT, "create takes a place and 0 to 256 threads");
  if (!from->allocate || !from->release)
    return failed(NAME_BAD_ARGUMENT, "an allocator has two functions");
  *made = NULL;
  if (!PROCESSOR_FITS)
    return failed(NAME_BAD_PROCESSOR, "the processor lacks " PROCESSOR ", which it was built for");
  Core *core = core_new(threads, from);
  if (!core) return failed(NAME_NO_MEMORY, "there is no memory for threads");
  int status = instance(core, made);
  core_release(core); /* the instance has its own share */
  return status;
}

EXPORT int NAME_clone(const NAME_model *model, NAME_model **made) {
  if (!model || !made) return failed(NAME_BAD_ARGUMENT, "clone takes a model and a place");
  return instance(model->core, made);
}

EXPORT void NAME_destroy(NAME_model *model) {
  if (!model) return;
  Core *core = model->core;
  const NAME_allocator *from = &core->allocator;
  for (int i = 0; i < VALUES; i++) release(from, model->own[i], model->own_bytes[i]);
  release(from, model->arena, model->arena_bytes);
  release(from, model, sizeof *model);
  core_release(core);
}

EXPORT int NAME_inputs(void) { return INPUTS; }
EXPORT int NAME_outputs(void) { return OUTPUTS; }

EXPORT const NAME_tensor *NAME_input(int number) {
  return number >= 0 && number < INPUTS ? inputs + number : NULL;
}

EXPORT const NAME_tensor *NAME_output(int number) {
  return number >= 0 && number < OUTPUTS ? outputs + number : NULL;
}

EXPORT int NAME_set_input(NAME_model *model, int number, const void *data) {
  if (!model || !data || number < 0 || number >= INPUTS)
    return failed(NAME_BAD_ARGUMENT, "set_input takes a model, the number of an input, and memory");
  model->values[number] = (int64_t)(intptr_t)data;
  return NAME_OK;
}

EXPORT int NAME_set_output(NAME_model *model, int number, void *data) {
  if (!model || !data || number < 0 || number >= OUTPUTS)
    return failed(NAME_BAD_ARGUMENT, "set_output takes a model, the number of an output, and memory");
  if (output_found[number])
    return failed(NAME_BAD_ARGUMENT, "data decide the size of this output: get_output has it after a run");
  model->values[output_values[number]] = (int64_t)(intptr_t)data;
  return NAME_OK;
}

/* The memory of a value: what was set, or own memory, which grows; NULL where there is none. */
static void *placed(NAME_model *model, int64_t value, size_t nbytes) {
  if (!model->values[value]) {
    if (!model->own[value] || model->own_bytes[value] < nbytes) {
      release(&model->core->allocator, model->own[value], model->own_bytes[value]);
      model->own[value] = allocate(&model->core->allocator, nbytes);
      model->own_bytes[value] = model->own[value] ? nbytes : 0;
    }
    model->values[value] = (int64_t)(intptr_t)model->own[value];
  }
  return (void *)(intptr_t)model->values[value];
}

EXPORT void *NAME_get_output(NAME_model *model, int number) {
  if (!is_known(model, number)) return NULL;
  int64_t value = output_values[number];
  if (output_found[number]) return (void *)(intptr_t)model->values[value];
  return placed(model, value, model->ends[INPUTS + number].nbytes);
}

/* -- a run ------------------------------------------------------------------------------------- */

typedef struct {
  Core *core;
  const Gear *gear;
  void *table;
  int64_t reached;
} Run;

static void *run_here(void *given) {
  Run *run = given;
  run->reached = NAME_rt_run(run->core->pool, run->core->words + run->gear->words, run->table, 0);
  return NULL;
}

/* Bytes of the caller's stack that are left; kernels keep tiles there. */
static size_t stack_left(void) {
  char here;
  uintptr_t low = 0, at = (uintptr_t)&here;
#if defined(_WIN32)
  uintptr_t high;
  GetCurrentThreadStackLimits(&low, &high);
#elif defined(__APPLE__)
  pthread_t self = pthread_self();
  low = (uintptr_t)pthread_get_stackaddr_np(self) - pthread_get_stacksize_np(self);
#else
  static _Thread_local uintptr_t known; /* asking takes longer than a small program */
  if (!known) {
    pthread_attr_t attributes;
    struct rlimit limit;
    void *bottom = NULL;
    size_t nbytes = 0;
    if (syscall(SYS_gettid) == getpid()) {
      /* The first thread's stack grows. */
      int is_wide = getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur > STACK_BYTES;
      size_t most = is_wide ? STACK_BYTES : limit.rlim_cur;
      known = at > most ? at - most + most / 8 : 1;
    } else if (!pthread_getattr_np(pthread_self(), &attributes)) {
      pthread_attr_getstack(&attributes, &bottom, &nbytes);
      pthread_attr_destroy(&attributes);
      known = bottom ? (uintptr_t)bottom : at;
    } else {
      known = at;
    }
  }
  low = known;
#endif
  return at > low ? at - low : 0;
}

/* Run on the caller's stack, or, where it is small, on a thread of its own. */
static int run_with_room(Run *run) {
  if (stack_left() >= STACK_LEAST) {
    run_here(run);
    return 1;
  }
  pthread_t thread;
  if (start_thread(&thread, PTHREAD_CREATE_JOINABLE, run_here, run)) return 0;
  pthread_join(thread, NULL);
  return 1;
}

/* Say which index was out of range where a program has stopped. */
static int stopped(const Part *part, int64_t reached) {
  for (int64_t i = 0; i < part->gear->stop_count; i++) {
    const Stop *stop = part->gear->stops + i;
    if (stop->step != reached) continue;
    const char *found = (const char *)(intptr_t)part->bases[stop->base] + stop->offset;
    int64_t extent = stop->place < 0 ? stop->extent : part->registers[stop->place];
    snprintf(message, sizeof message, "NAME: %s: index %lld is out of range for an extent of %lld",
             stop->op, (long long)((const int64_t *)found)[1], (long long)extent);
    return NAME_BAD_INDEX;
  }
  return failed(NAME_BAD_ARGUMENT, "the program stopped early");
}

/* Run a phase at its extents. */
static int run_phase(NAME_model *model, const Phase *phase) {
  Part *part = model->parts + (phase - phases);
  int64_t *bases = part->bases;
  for (int64_t i = 0; i < phase->inputs; i++) *bases++ = model->values[phase->takes[i]];
  for (int64_t v = phase->first; v < phase->first + phase->results; v++) {
    if (value_outputs[v] < 0 || output_found[value_outputs[v]]) model->values[v] = 0; /* sizes change */
    *bases = (int64_t)(intptr_t)placed(model, v, model->nbytes[v]);
    if (!*bases++) return failed(NAME_NO_MEMORY, "there is no memory for outputs");
  }
  bases[0] = bases[1] = (int64_t)(intptr_t)NAME_weights;
  bases[2] = (int64_t)(intptr_t)model->arena;
  /* The executor finds the table of addresses through an array object; this is its one field. */
  struct { int64_t before[ARRAY_DATA_WORD]; int64_t *data; } table = {{0}, part->bases};
  Run run = {model->core, part->gear, &table, -1};
  if (!run_with_room(&run))
    return failed(NAME_NO_THREAD, "the caller's stack is too small, and no thread could be started");
  return run.reached == -1 ? NAME_OK : stopped(part, run.reached);
}

/* Enter the extents that a phase has found. */
static int found(NAME_model *model, const Phase *phase, int64_t *extents) {
  for (int64_t i = 0; i < phase->found; i++) {
    int64_t rows = phase->first + phase->results - 2 * (phase->found - i);
    const NAME_extent *known = extents_known + phase->finds + i;
    int64_t count = *(const int32_t *)(intptr_t)model->values[rows + 1];
    if (count < known->low || count > known->high)
      return failed(NAME_BAD_EXTENT, "the program finds an extent beyond its range");
    extents[phase->finds + i] = count;
    dims_of(model, rows)[0] = count;
    if (value_outputs[rows] < 0) continue;
    /* The other rows are behind. */
    int number = INPUTS + (int)value_outputs[rows];
    model->shapes[axes_at[number]] = count;
    model->ends[number].nbytes = (size_t)item_bytes[rows] * (size_t)count;
    for (int axis = 1; axis < model->ends[number].ndim; axis++)
      model->ends[number].nbytes *= (size_t)model->ends[number].shape[axis];
  }
  return NAME_OK;
}

/* Whether a phase has its program for these extents; others do not concern it. */
static int is_chosen(const Part *part, const Phase *phase, const int64_t *extents) {
  if (!part->gear) return 0;
  for (int64_t i = 0; i < phase->need_count; i++)
    if (part->extents[phase->needs[i]] != extents[phase->needs[i]]) return 0;
  return 1;
}

/* -- branches and loops ---------------------------------------------------------------------------- */

/* Kinds of steps, each with three numbers: values, axes, extents, or the step to go on with. */
enum {
  STEP_RUN, STEP_UNLESS, STEP_GO, STEP_UNTIL, STEP_SET, STEP_COPY, STEP_ADD,
  STEP_READ, STEP_ALIAS, STEP_SWAP, STEP_ENTRY, STEP_SIZE, STEP_BEGIN, STEP_APPEND, STEP_COUNT
};

static int ran(NAME_model *model, const Phase *phase, int64_t *extents) {
  Part *part = model->parts + (phase - phases);
  int status = is_chosen(part, phase, extents) ? NAME_OK : choose(model, phase, extents);
  if (!status) status = run_phase(model, phase);
  return status ? status : found(model, phase, extents);
}

/* Enter an extent that a value has. */
static int read_extent(int64_t *extents, int64_t number, int64_t extent) {
  const NAME_extent *known = extents_known + number;
  extents[number] = extent;
  if (extent >= known->low && extent <= known->high) return NAME_OK;
  snprintf(message, sizeof message, "NAME: %s becomes %lld, and the library is for %lld to %lld",
           known->name, (long long)extent, (long long)known->low, (long long)known->high);
  return NAME_BAD_EXTENT;
}

/* Have one value be another one, of as many axes or, where it is an entry of that, of one less. */
static void alias(NAME_model *model, int64_t value, int64_t of, size_t offset) {
  int64_t axes_less = value_axes[of] - value_axes[value];
  model->values[value] = model->values[of] + (int64_t)offset;
  memcpy(dims_of(model, value), dims_of(model, of) + axes_less, sizeof(int64_t) * (size_t)value_axes[value]);
}

/* Have a state be what a turn has made, whose memory the next but one writes into. */
static void swap(NAME_model *model, int64_t state, int64_t made) {
  void *own = model->own[state];
  size_t nbytes = model->own_bytes[state];
  alias(model, state, made, 0);
  model->own[state] = model->own[made];
  model->own_bytes[state] = model->own_bytes[made];
  model->own[made] = own;
  model->own_bytes[made] = nbytes;
}

/* Bytes of one entry of a value. */
static size_t entry_bytes(NAME_model *model, int64_t value) {
  size_t nbytes = (size_t)item_bytes[value];
  for (int64_t axis = 1; axis < value_axes[value]; axis++) nbytes *= (size_t)dims_of(model, value)[axis];
  return nbytes;
}

/* Have own memory of a value hold so many entries, with those that are there. */
static int hold(NAME_model *model, int64_t value, int64_t count) {
  const NAME_allocator *from = &model->core->allocator;
  size_t needed = entry_bytes(model, value) * (size_t)count, had = model->own_bytes[value];
  if (!model->own[value] || had < needed) {
    size_t nbytes = needed > 2 * had ? needed : 2 * had;
    void *memory = allocate(from, nbytes);
    if (!memory) return failed(NAME_NO_MEMORY, "there is no memory for what a loop gives");
    if (had) memcpy(memory, model->own[value], had);
    release(from, model->own[value], had);
    model->own[value] = memory;
    model->own_bytes[value] = nbytes;
  }
  model->values[value] = (int64_t)(intptr_t)model->own[value];
  return NAME_OK;
}

/* Write an entry of what a loop stacks. */
static int append(NAME_model *model, int64_t value, int64_t entry, int64_t position) {
  int status = hold(model, value, position + 1);
  size_t nbytes = entry_bytes(model, value);
  if (!status && nbytes)
    memcpy((char *)model->own[value] + nbytes * (size_t)position, (void *)(intptr_t)model->values[entry], nbytes);
  return status;
}

/* Numbers from 0 on, as many as a value says, which is an extent. */
static int count(NAME_model *model, int64_t value, int64_t of, int64_t *extents, int64_t number) {
  const void *given = (const void *)(intptr_t)model->values[of];
  int is_wide = item_bytes[value] == 8;
  int64_t many = is_wide ? *(const int64_t *)given : *(const int32_t *)given;
  int status = read_extent(extents, number, many > 0 ? many : 0);
  if (!status) status = hold(model, value, extents[number]);
  if (status) return status;
  dims_of(model, value)[0] = extents[number];
  for (int64_t i = 0; i < extents[number]; i++) {
    if (is_wide) ((int64_t *)model->own[value])[i] = i;
    else ((int32_t *)model->own[value])[i] = (int32_t)i;
  }
  return NAME_OK;
}

static int run_steps(NAME_model *model, int64_t *extents) {
  for (int64_t at = 0; at < STEPS;) {
    const int64_t *step = steps + 4 * at++, a = step[1], b = step[2], c = step[3];
    int status = NAME_OK;
    switch (step[0]) {
      case STEP_RUN: status = ran(model, phases + a, extents); break;
      case STEP_UNLESS: at = *(const char *)(intptr_t)model->values[a] ? at : b; break;
      case STEP_GO: at = a; break;
      case STEP_UNTIL: at = extents[a] < extents[b] ? at : c; break;
      case STEP_SET: extents[a] = b; break;
      case STEP_COPY: extents[a] = extents[b]; break;
      case STEP_ADD: extents[a] += b; break;
      case STEP_READ: status = read_extent(extents, a, dims_of(model, b)[c]); break;
      case STEP_ALIAS: alias(model, a, b, 0); break;
      case STEP_SWAP: swap(model, a, b); break;
      case STEP_ENTRY: alias(model, a, b, entry_bytes(model, b) * (size_t)extents[c]); break;
      case STEP_SIZE: dims_of(model, a)[b] = extents[c]; break;
      case STEP_BEGIN: status = hold(model, a, 0); break;
      case STEP_APPEND: status = append(model, a, b, extents[c]); break;
      case STEP_COUNT: status = count(model, a, b, extents, c); break;
    }
    if (status) return status;
  }
  return NAME_OK;
}

EXPORT int NAME_run(NAME_model *model) {
  if (!model) return failed(NAME_BAD_ARGUMENT, "run takes a model");
  if (!model->parts->gear) return failed(NAME_BAD_ARGUMENT, "no extents have been set: set_extents");
  for (int i = 0; i < INPUTS; i++)
    if (!model->values[i]) return failed(NAME_BAD_ARGUMENT, "an input has not been set");
  int64_t extents[KNOWN + 1];
  memcpy(extents, model->chosen, sizeof model->chosen);
  model->is_done = 0;
  int status = run_steps(model, extents);
  model->is_done = !status;
  return status;
}
