/* The runtime of a model in WebAssembly: one instance, one thread. Scratch memory, inputs and outputs
 * lie behind what the module begins with, as large as the extents need that were set.
 *
 * parts.h, written beside this file, has the programs' words, their kernels and their ends.
 */
#include <stddef.h>
#include <stdint.h>

#include "gears.h"

typedef struct {
  const char *name;
  int64_t low, high;
} NAME_extent;

typedef struct {
  const char *name, *dtype;
  int ndim;
  const int64_t *shape;
  size_t nbytes;
} NAME_tensor;

#include "parts.h"

#define EXPORT(name) __attribute__((export_name(#name), used))
enum { LINE = 64, PAGE = 1 << 16, ENDS = INPUTS + OUTPUTS };
enum { FITS, UNFIT, WIDE, FULL }; /* what comes of extents */

extern unsigned char __heap_base; /* behind all that the linker has placed */
static _Alignas(LINE) unsigned char pool[LINE]; /* nobody but the caller's thread */
static int64_t words[WORDS], bases[BASES], tried[REGISTERS + 1], registers[REGISTERS + 1];
static int64_t asked[EXTENTS + 1], shapes[AXES + 1];
static const Gear *gear; /* NULL until there are extents */
static int ready;

/* A product of 128 bits, for which LLVM calls a library that is not here: what tells of sizes beyond
 * 64 bits. */
typedef union {
  __int128 whole;
  struct { uint64_t low, high; } half;
} Wide;

__int128 __multi3(__int128 a, __int128 b) {
  const Wide x = {a}, y = {b};
  const uint64_t x0 = (uint32_t)x.half.low, x1 = x.half.low >> 32;
  const uint64_t y0 = (uint32_t)y.half.low, y1 = y.half.low >> 32;
  const uint64_t low = x0 * y0, one = x1 * y0 + (low >> 32), two = x0 * y1 + (uint32_t)one;
  Wide made;
  made.half.low = two << 32 | (uint32_t)low;
  made.half.high = x1 * y1 + (one >> 32) + (two >> 32) + x.half.low * y.half.high + x.half.high * y.half.low;
  return made.whole;
}

static int64_t place(const void *memory) { return (int64_t)(uintptr_t)memory; }

static void prepare(void) {
  __builtin_memcpy(words, program_words, sizeof words);
  for (size_t i = 0; i < PLACES; i++) {
    int64_t *at = words + kernel_places[i];
    *at = (int64_t)(uintptr_t)kernels[*at];
  }
  ready = 1;
}

/* Names, types, shapes and ranges as JSON, ending in a zero. */
EXPORT(about) const char *about(void) { return ABOUT; }

/* Say what an extent is to be, by number; `settle` takes all of them. */
EXPORT(extent) void extent(int number, double value) { asked[number] = (int64_t)value; }

/* Bytes of an input, or behind them of an output, whose extents are `from`; they become its shape. */
static uint64_t measured(int number, const int64_t *from) {
  int64_t value = number < INPUTS ? number : output_values[number - INPUTS];
  uint64_t nbytes = (uint64_t)item_bytes[value];
  for (int64_t axis = axes_at[number]; axis < axes_at[number + 1]; axis++) {
    shapes[axis] = from[axis - axes_at[number]];
    /* Of more than 32 bits it is too much, whatever follows. */
    if (shapes[axis] && nbytes > UINT32_MAX / (uint64_t)shapes[axis]) nbytes = UINT32_MAX;
    else nbytes *= (uint64_t)shapes[axis];
  }
  return (nbytes + LINE) / LINE * LINE;
}

/* Choose the program for the extents that were said, and find places; else all is as it was. */
EXPORT(settle) int settle(void) {
  const Gear *found = NULL;
  int wide = 0;
  if (!ready) prepare();
  for (int i = 0; i < GEARS && !found; i++)
    if (serves(phases, gears + i, asked, tried, &wide)) found = gears + i;
  if (!found) return wide ? WIDE : UNFIT;
  int64_t peak = tried[found->order_count ? found->peak : found->least], before[AXES + 1];
  uint64_t places[ENDS + 1], at = ((uint64_t)(uintptr_t)&__heap_base + LINE - 1) / LINE * LINE;
  const uint64_t arena = at;
  if (peak < 0 || peak > found->arena) return WIDE;
  at += ((uint64_t)peak + LINE) / LINE * LINE;
  __builtin_memcpy(before, shapes, sizeof shapes);
  const int64_t *result = found->results;
  for (int i = 0; i < ENDS; i++) {
    int64_t own[MOST_AXES + 1];
    for (int64_t axis = axes_at[i]; axis < axes_at[i + 1]; axis++)
      own[axis - axes_at[i]] = i >= INPUTS ? 0 : axes[axis] >= 0 ? axes[axis] : asked[-1 - axes[axis]];
    if (i >= INPUTS)
      for (int64_t axis = axes_at[i]; axis < axes_at[i + 1]; axis++)
        own[axis - axes_at[i]] = tried[*result++];
    places[i] = at;
    at += measured(i, own);
  }
  uint64_t pages = (at + PAGE - 1) / PAGE, now = __builtin_wasm_memory_size(0);
  if (pages > UINT32_MAX / PAGE || (pages > now && __builtin_wasm_memory_grow(0, (size_t)(pages - now)) == (size_t)-1)) {
    __builtin_memcpy(shapes, before, sizeof shapes);
    return FULL;
  }
  gear = found;
  __builtin_memcpy(registers, tried, sizeof registers);
  for (int i = 0; i < ENDS; i++) bases[i] = (int64_t)places[i];
  bases[ENDS] = bases[ENDS + 1] = place(treadle_weights);
  bases[ENDS + 2] = (int64_t)arena;
  for (int64_t i = gear->first; i < gear->registers; i++) bases[ENDS + 3 + i - gear->first] = registers[i];
  return FITS;
}

/* Where an input, or behind them an output, lies, and an extent of it. */
EXPORT(end) void *end(int number) { return (void *)(uintptr_t)bases[number]; }
EXPORT(axis) double axis(int number, int axis) { return (double)shapes[axes_at[number] + axis]; }

/* -1 where all went well; else the number of the check that failed, of which the rest tells. */
EXPORT(run) int run(void) {
  /* The executor finds the table of addresses through an array object; this is its one field. */
  struct { int64_t before[ARRAY_DATA_WORD]; int64_t *data; } table = {{0}, bases};
  int64_t reached = NAME_rt_run(pool, words + gear->words, &table, 0);
  if (reached == -1) return -1;
  for (int i = 0; i < gear->stop_count; i++)
    if (gear->stops[i].step == reached) return i;
  __builtin_trap();
}

/* Of a check that failed: the op, the index that it refused, and the extent that it is for. */
EXPORT(op) const char *op(int number) { return gear->stops[number].op; }

EXPORT(index) double refused(int number) {
  const Stop *stop = gear->stops + number;
  const char *found = (const char *)(uintptr_t)bases[stop->base] + stop->offset;
  return (double)((const int64_t *)found)[1];
}

EXPORT(limit) double limit(int number) {
  const Stop *stop = gear->stops + number;
  return (double)(stop->place < 0 ? stop->extent : registers[stop->place]);
}
