/* The C interface of Treadle's custom ops; see docs/custom-ops.md.
 *
 * A source file defines functions of the types below and lists its ops once:
 *
 *     TREADLE_OPS({"my_cube", 1, 1, "", NULL, cube, cube_backward})
 */
#ifndef TREADLE_OP_H
#define TREADLE_OP_H

#include <stddef.h>
#include <stdint.h>

#define TREADLE_ABI 1
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

/* Functions return 0; any other number makes the call fail with an error that shows it. `params`
 * are the op's parameters in the order of its list. */

/* Fills in dtype, ndim and shape of the outputs. */
typedef int (*treadle_infer)(const treadle_tensor *in, treadle_tensor *out, const double *params);

/* Fills in the data of the outputs; must not write to the inputs. */
typedef int (*treadle_forward)(const treadle_tensor *in, treadle_tensor *out, const double *params);

/* Fills in the gradient of each input (of the input's type), from those of the outputs. */
typedef int (*treadle_backward)(const treadle_tensor *grads_of_out, const treadle_tensor *in,
                                const treadle_tensor *out, treadle_tensor *grads_of_in,
                                const double *params);

typedef struct {
    const char *name;   /* unique; how programs in files refer to the op */
    int32_t inputs;
    int32_t outputs;
    const char *params; /* names and defaults, "scale=1 bias=0"; "" for none */
    treadle_infer infer;       /* NULL: every output has the type of the first input */
    treadle_forward forward;
    treadle_backward backward; /* NULL: the op has no gradient */
} treadle_op;

static inline int64_t treadle_size(const treadle_tensor *x) {
    int64_t size = 1;
    for (int32_t i = 0; i < x->ndim; i++) size *= x->shape[i];
    return size;
}

#ifdef __cplusplus
#define TREADLE_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define TREADLE_EXPORT __attribute__((visibility("default")))
#endif

#define TREADLE_OPS(...)                                              \
    TREADLE_EXPORT int32_t treadle_abi(void) { return TREADLE_ABI; }  \
    TREADLE_EXPORT const treadle_op *treadle_ops(void) {              \
        static const treadle_op all[] = {__VA_ARGS__, {NULL, 0, 0, NULL, NULL, NULL, NULL}}; \
        return all;                                                   \
    }

#endif
