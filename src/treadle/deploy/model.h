/* A compiled model: NAME. Written by Treadle; no Python is needed to build or to run it.
 *
 * Functions that can fail return a status, 0 if all is well; `NAME_error()` then says what went
 * wrong, for the calling thread. One instance is used by one thread at a time; clones share code
 * and weights and may be used by others at the same time.
 */
#ifndef NAME_H
#define NAME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct NAME_model NAME_model;

/* What a function may return. */
enum {
  NAME_OK = 0,
  NAME_BAD_ARGUMENT = 1, /* a number out of range, a missing pointer, an input that was not set */
  NAME_NO_MEMORY = 2,
  NAME_BAD_PROCESSOR = 3, /* the processor lacks instructions that the model was compiled for */
  NAME_NO_THREAD = 4,
  NAME_BAD_INDEX = 5, /* an index is out of range; NAME_error() names op, index and extent */
  NAME_BAD_EXTENT = 6 /* an extent, chosen or found, is outside of its range, or the model does not take it */
};

/* Element types, by their names. */
typedef struct NAME_tensor {
  const char *name;
  const char *dtype; /* "float32", "int64", ... */
  int ndim;
  const int64_t *shape; /* -1 where an instance chooses the extent, or data decide it */
  size_t nbytes; /* of the dense row-major array; 0 where an extent is not known */
} NAME_tensor;

/* An extent that instances choose, such as the number of rows; both ends are inclusive. */
typedef struct NAME_extent {
  const char *name;
  int64_t low, high;
} NAME_extent;

/* Where memory comes from: `alignment` is a power of two. */
typedef struct NAME_allocator {
  void *(*allocate)(void *context, size_t nbytes, size_t alignment);
  void (*release)(void *context, void *memory, size_t nbytes);
  void *context;
} NAME_allocator;

/* A new instance. threads: how many share the work of a call, the caller counted; 0: all cores.
 * allocator: NULL for the system's; it is copied. */
int NAME_create(NAME_model **made, int threads, const NAME_allocator *allocator);

/* An instance with inputs, outputs and scratch memory of its own, and the code, weights and threads
 * of another one. */
int NAME_clone(const NAME_model *model, NAME_model **made);

/* Free an instance; NULL is allowed. */
void NAME_destroy(NAME_model *model);

/* Number of inputs and outputs, and what they are (NULL where there is none of that number). */
int NAME_inputs(void);
int NAME_outputs(void);
const NAME_tensor *NAME_input(int number);
const NAME_tensor *NAME_output(int number);

/* Number of extents that instances choose (0 where all shapes are numbers), and what they are; NULL
 * where there is none of that number. */
int NAME_extents(void);
const NAME_extent *NAME_extent_of(int number);

/* Choose the extents of the next runs, one number for each, in order. This takes microseconds and
 * may grow scratch memory. What was set as an input or output whose size changes has to be set
 * again. Where it fails, the instance has the extents that it had (NAME_BAD_EXTENT, NAME_NO_MEMORY). */
int NAME_set_extents(NAME_model *model, const int64_t *extents, size_t count);

/* Inputs and outputs at the extents of an instance, until it has others; NULL where there is none of
 * that number, no extents are set, or data decide an extent and no run has ended since. */
const NAME_tensor *NAME_input_at(const NAME_model *model, int number);
const NAME_tensor *NAME_output_at(const NAME_model *model, int number);

/* Have the model read an input from, or write an output to, this memory from now on; nothing is
 * copied. It is the caller's, dense and row-major, and must live until the next run has ended. An
 * output whose size data decide has memory of the instance's. */
int NAME_set_input(NAME_model *model, int number, const void *data);
int NAME_set_output(NAME_model *model, int number, void *data);

/* The memory of an output: what was set, or the instance's own. NULL where there is none; where data
 * decide its size, until a run has ended. */
void *NAME_get_output(NAME_model *model, int number);

/* Compute all outputs. Where an index is out of range (NAME_BAD_INDEX), outputs may hold anything;
 * nothing outside of the model's memory was read or written. */
int NAME_run(NAME_model *model);

/* Bytes of scratch memory of an instance (at most, over all extents), and of weights that instances
 * share. */
size_t NAME_scratch_bytes(void);
size_t NAME_weight_bytes(void);

/* What the last call of this thread that failed had to say; "" if none did. */
const char *NAME_error(void);

/* Who made the library, and for which processor: JSON. */
const char *NAME_about(void);

#ifdef __cplusplus
}
#endif
#endif
