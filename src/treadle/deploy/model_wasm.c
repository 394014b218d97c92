/* The runtime of a model in WebAssembly: one instance, one thread, all memory laid out beforehand.
 *
 * parts.h, written beside this file, has the program's words, its kernels and its ends.
 */
#include <stddef.h>
#include <stdint.h>

#include "parts.h"

#define EXPORT(name) __attribute__((export_name(#name), used))
enum { LINE = 64 };

static _Alignas(LINE) unsigned char arena[ARENA_BYTES];
static _Alignas(LINE) unsigned char ends[ENDS_BYTES];
static _Alignas(LINE) unsigned char pool[LINE]; /* nobody but the caller's thread */
static int64_t bases[INPUTS + OUTPUTS + 3];
static int ready;

static int64_t place(const void *memory) { return (int64_t)(uintptr_t)memory; }

static void prepare(void) {
  for (size_t i = 0; i < PLACES; i++) {
    int64_t *at = program_words + kernel_places[i];
    *at = (int64_t)(uintptr_t)kernels[*at];
  }
  for (int i = 0; i < INPUTS + OUTPUTS; i++) bases[i] = place(ends + end_offsets[i]);
  bases[INPUTS + OUTPUTS] = place(treadle_weights);
  bases[INPUTS + OUTPUTS + 1] = place(treadle_weights);
  bases[INPUTS + OUTPUTS + 2] = place(arena);
  ready = 1;
}

/* Names, types and shapes as JSON, ending in a zero. */
EXPORT(about) const char *about(void) { return ABOUT; }

/* Where an input, or behind them an output, lies. */
EXPORT(end) void *end(int number) { return ends + end_offsets[number]; }

/* -1 where all went well; else the number of the check that failed, whose index is at `index`. */
EXPORT(run) int run(void) {
  /* The executor finds the table of addresses through an array object; this is its one field. */
  struct { int64_t before[ARRAY_DATA_WORD]; int64_t *data; } table = {{0}, bases};
  if (!ready) prepare();
  int64_t reached = treadle_wasm_run(pool, program_words, &table, 0);
  if (reached == -1) return -1;
  for (int i = 0; i < STOPS; i++)
    if (stops[i].step == reached) return i;
  __builtin_trap();
}

/* The index that a check refused. */
EXPORT(index) double refused(int number) {
  const char *found = (const char *)(uintptr_t)bases[stops[number].base] + stops[number].offset;
  return (double)((const int64_t *)found)[1];
}
