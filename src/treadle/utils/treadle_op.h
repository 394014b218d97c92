/* The C interface of Treadle's custom ops; see docs/custom-ops.md. C++ has treadle_op.hpp above it.
 *
 * A source file defines functions of the types below and lists its ops once:
 *
 *     TREADLE_OPS({"my_cube", 1, 1, "", NULL, cube, cube_backward})
 */
#ifndef TREADLE_OP_H
#define TREADLE_OP_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TREADLE_ABI 2
#define TREADLE_MAX_NDIM 8

enum treadle_dtype {
    TREADLE_BOOL,
    TREADLE_UINT8,
    TREADLE_UINT16,
    TREADLE_UINT32,
    TREADLE_UINT64,
    TREADLE_INT8,
    TREADLE_INT16,
    TREADLE_INT32,
    TREADLE_INT64,
    TREADLE_FLOAT16,
    TREADLE_BFLOAT16,
    TREADLE_FLOAT32,
    TREADLE_FLOAT64
};

typedef struct {
    void *data;      /* dense and row-major; NULL while types are inferred */
    int32_t dtype;   /* a treadle_dtype */
    int32_t ndim;    /* 0 to TREADLE_MAX_NDIM */
    int64_t shape[TREADLE_MAX_NDIM];
} treadle_tensor;

/* Functions return 0; any other number makes the call fail with an error that shows it, or with
 * what `treadle_fail` was given. `params` are the op's parameters in the order of its list. */

/* Fills in dtype, ndim and shape of the outputs. */
typedef int (*treadle_infer)(const treadle_tensor *in, treadle_tensor *out, const double *params);

/* Fills in the data of the outputs; must not write to the inputs. */
typedef int (*treadle_forward)(const treadle_tensor *in, treadle_tensor *out, const double *params);

/* Fills in the gradient of each input (of the input's type), from those of the outputs. */
typedef int (*treadle_backward)(const treadle_tensor *grads_of_out, const treadle_tensor *in,
                                const treadle_tensor *out, treadle_tensor *grads_of_in,
                                const double *params);

/* The same on a GPU: `data` are addresses there, and the work is put into `stream`, a cudaStream_t,
 * without waiting for it. */
typedef int (*treadle_forward_cuda)(const treadle_tensor *in, treadle_tensor *out,
                                    const double *params, void *stream);
typedef int (*treadle_backward_cuda)(const treadle_tensor *grads_of_out, const treadle_tensor *in,
                                     const treadle_tensor *out, treadle_tensor *grads_of_in,
                                     const double *params, void *stream);

typedef struct {
    const char *name;   /* unique; how programs in files refer to the op */
    int32_t inputs;
    int32_t outputs;
    const char *params; /* names and defaults, "scale=0.5 axis:int=1 pads:int=0,0"; "" for none */
    treadle_infer infer;       /* NULL: every output has the type of the first input */
    treadle_forward forward;
    treadle_backward backward; /* NULL: the op has no gradient */
    treadle_forward_cuda forward_cuda; /* NULL: on a GPU the op runs on the host */
    treadle_backward_cuda backward_cuda;
} treadle_op;

static inline int64_t treadle_size(const treadle_tensor *x) {
    int64_t size = 1;
    for (int32_t i = 0; i < x->ndim; i++) size *= x->shape[i];
    return size;
}

/* Which of Treadle's errors a call fails with. */
enum treadle_error {
    TREADLE_SHAPE_ERROR = -1,
    TREADLE_DTYPE_ERROR = -2,
    TREADLE_MEMORY_ERROR = -3,
    TREADLE_OTHER_ERROR = -4
};

/* What went wrong in this thread; one for all files of a library. */
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) __thread char treadle_text[512] = "";
__attribute__((weak, visibility("default"))) char *treadle_message(void) { return treadle_text; }
#ifdef __cplusplus
}
#endif

/* Ends a function with words: `return treadle_fail(TREADLE_SHAPE_ERROR, "takes %d axes", n);` */
__attribute__((format(printf, 2, 3), unused))
static int treadle_fail(int error, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(treadle_text, sizeof treadle_text, format, values);
    va_end(values);
    return error;
}

#ifdef __cplusplus
#define TREADLE_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define TREADLE_EXPORT __attribute__((visibility("default")))
#endif

#define TREADLE_OPS(...)                                              \
    TREADLE_EXPORT int32_t treadle_abi(void) { return TREADLE_ABI; }  \
    TREADLE_EXPORT const treadle_op *treadle_ops(void) {              \
        static const treadle_op all[] = {__VA_ARGS__, {0}};           \
        return all;                                                   \
    }

#endif
