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
#include <string.h>
#include <unistd.h>

#include "NAME.h"
#include "NAME_parts.h"

#define EXPORT __attribute__((visibility("default")))
enum { LINE = 64, STACK_BYTES = 16 << 20, SPINS_FREE = 3000, SPINS_CROWDED = 20 };

static _Thread_local char message[256];

static int failed(int status, const char *text) {
  snprintf(message, sizeof message, "NAME: %s", text);
  return status;
}

EXPORT const char *NAME_error(void) { return message; }
EXPORT const char *NAME_about(void) { return ABOUT; }
EXPORT size_t NAME_scratch_bytes(void) { return ARENA_BYTES; }
EXPORT size_t NAME_weight_bytes(void) { return WEIGHT_BYTES; }

/* -- memory ------------------------------------------------------------------------------------ */

static void *system_allocate(void *context, size_t nbytes, size_t alignment) {
  void *memory = NULL;
  (void)context;
  return posix_memalign(&memory, alignment, nbytes) ? NULL : memory;
}

static void system_release(void *context, void *memory, size_t nbytes) {
  (void)context;
  (void)nbytes;
  free(memory);
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

static void start_workers(Core *core, int wanted) {
  pthread_attr_t attributes;
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the caller's */
  for (core->threads = 1; core->threads < wanted; core->threads++) {
    pthread_t thread;
    int64_t *start = core->starts + 2 * core->threads;
    start[0] = (int64_t)(intptr_t)core->pool;
    start[1] = core->threads;
    *pool_int(core, POOL_LIVE) += 1;
    if (pthread_create(&thread, &attributes, (void *(*)(void *))NAME_rt_worker, start)) {
      *pool_int(core, POOL_LIVE) -= 1;
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
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
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
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

struct NAME_model {
  Core *core;
  char *arena;
  void *own[OUTPUTS ? OUTPUTS : 1];
  int64_t bases[INPUTS + OUTPUTS + 3];
};

static int instance(Core *core, NAME_model **made) {
  NAME_model *model = allocate(&core->allocator, sizeof *model);
  *made = NULL;
  if (!model) return failed(NAME_NO_MEMORY, "there is no memory for an instance");
  memset(model, 0, sizeof *model);
  model->core = core;
  atomic_fetch_add(&core->users, 1);
  model->arena = allocate(&core->allocator, ARENA_BYTES);
  if (!model->arena) {
    NAME_destroy(model);
    return failed(NAME_NO_MEMORY, "there is no scratch memory");
  }
  model->bases[INPUTS + OUTPUTS] = (int64_t)(intptr_t)NAME_weights;
  model->bases[INPUTS + OUTPUTS + 1] = (int64_t)(intptr_t)NAME_weights;
  model->bases[INPUTS + OUTPUTS + 2] = (int64_t)(intptr_t)model->arena;
  *made = model;
  return NAME_OK;
}

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
  for (int i = 0; i < OUTPUTS; i++) release(from, model->own[i], outputs[i].nbytes);
  release(from, model->arena, ARENA_BYTES);
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
  model->bases[number] = (int64_t)(intptr_t)data;
  return NAME_OK;
}

EXPORT int NAME_set_output(NAME_model *model, int number, void *data) {
  if (!model || !data || number < 0 || number >= OUTPUTS)
    return failed(NAME_BAD_ARGUMENT, "set_output takes a model, the number of an output, and memory");
  model->bases[INPUTS + number] = (int64_t)(intptr_t)data;
  return NAME_OK;
}

EXPORT void *NAME_get_output(NAME_model *model, int number) {
  if (!model || number < 0 || number >= OUTPUTS) return NULL;
  int64_t *base = model->bases + INPUTS + number;
  if (!*base) {
    model->own[number] = allocate(&model->core->allocator, outputs[number].nbytes);
    *base = (int64_t)(intptr_t)model->own[number];
  }
  return (void *)(intptr_t)*base;
}

EXPORT int NAME_run(NAME_model *model) {
  if (!model) return failed(NAME_BAD_ARGUMENT, "run takes a model");
  for (int i = 0; i < INPUTS; i++)
    if (!model->bases[i]) return failed(NAME_BAD_ARGUMENT, "an input has not been set");
  for (int i = 0; i < OUTPUTS; i++)
    if (!NAME_get_output(model, i)) return failed(NAME_NO_MEMORY, "there is no memory for outputs");
  /* The executor finds the table of addresses through an array object; this is its one field. */
  struct { int64_t before[ARRAY_DATA_WORD]; int64_t *data; } table = {{0}, model->bases};
  int64_t reached = NAME_rt_run(model->core->pool, model->core->words, &table, 0);
  if (reached == -1) return NAME_OK;
  for (int i = 0; i < STOPS; i++) {
    if (stops[i].step != reached) continue;
    const char *found = (const char *)(intptr_t)model->bases[stops[i].base] + stops[i].offset;
    snprintf(message, sizeof message, "NAME: %s: index %lld is out of range for an extent of %lld",
             stops[i].op, (long long)((const int64_t *)found)[1], (long long)stops[i].extent);
    return NAME_BAD_INDEX;
  }
  return failed(NAME_BAD_ARGUMENT, "the program stopped early");
}
