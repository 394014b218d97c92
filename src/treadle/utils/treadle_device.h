/* The C interface of a device; docs/writing-a-backend.md, "A device in C", builds one.
 *
 * A shared library exports one function that returns one table:
 *
 *     static const td_library LIBRARY = {
 *         TD_VERSION, sizeof(td_library), "shelf", KERNELS, N_KERNELS, sizeof(td_kernel),
 *         td_message, count, open_device, close_device, properties, allocate, release,
 *         copy_in, copy_out,
 *     };
 *     TD_EXPORT const td_library *treadle_device_library(uint32_t version) {
 *         return version == TD_VERSION ? &LIBRARY : NULL;
 *     }
 *
 * and a Python package names it, in the module of its entry point "treadle.backends":
 *
 *     backend = treadle.backends.c_device.open_library("libshelf.so")
 *
 * Only memory and copies have to be there. What has no kernel runs on the host, where it is counted;
 * shapes, types, views, broadcasting, gradients and random numbers are the framework's.
 *
 * Versions. TD_VERSION changes when something here changes its meaning or place, and then a library
 * is refused. Within a version functions are only added at the end of td_library, and members at the
 * end of td_kernel; the table says by its sizes how much of them the library knows, and what lies
 * beyond that counts as NULL. All other structures stay as they are.
 *
 * Threads. `allocate` and `release` come one at a time; everything else may be called by several
 * threads at once, with any of the memory and streams of a device. No function may call Python.
 */
#ifndef TREADLE_DEVICE_H
#define TREADLE_DEVICE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TD_VERSION 1

/* Handles of the library. The framework never looks behind one, and never does arithmetic on it:
 * td_memory may be an address, the number of a block, or anything else that is not NULL. */
typedef struct td_device td_device;
typedef struct td_memory td_memory;
typedef struct td_stream td_stream;
typedef struct td_event td_event;

/* What functions return. All but TD_OK have a message. */
enum td_status {
    TD_OK = 0,
    TD_FAILED = 1,    /* the call; an error for the user, never a reason to run on the host */
    TD_NO_MEMORY = 2, /* the framework lets go of what it can, and `allocate` is asked once more */
    TD_LOST = 3       /* the device is gone for good; nothing is asked of it any more */
};

/* What `supports` returns: TD_YES, or what stands in the way. The message tells the rest, and is
 * what users read in reports: say what would do, "matrices only". */
enum td_answer {
    TD_YES = 0,
    TD_NO_DTYPE = 1,        /* an operand's element type */
    TD_NO_RANK = 2,         /* its number of axes */
    TD_NO_SHAPE = 3,        /* its extents */
    TD_NO_ATTRIBUTE = 4,    /* the value of an attribute */
    TD_NO_SIZE = 5,         /* the size of an operand, or of what is needed beside it */
    TD_NO_PRECISION = 6,    /* results would be less exact than asked for */
    TD_NO_FEATURE = 7,      /* this model of the device lacks something */
    TD_NO_POLICY = 8        /* a decision */
};

enum td_dtype {
    TD_BOOL = 0, /* one byte, 0 or 1 */
    TD_UINT8 = 1,
    TD_UINT16 = 2,
    TD_UINT32 = 3,
    TD_UINT64 = 4,
    TD_INT8 = 5,
    TD_INT16 = 6,
    TD_INT32 = 7,
    TD_INT64 = 8,
    TD_FLOAT16 = 9,
    TD_BFLOAT16 = 10,
    TD_FLOAT32 = 11,
    TD_FLOAT64 = 12,
    TD_COMPLEX64 = 13 /* two float32 */
};

/* A set of element types: TD_SET(TD_FLOAT32) | TD_SET(TD_INT32). */
#define TD_SET(dtype) (UINT64_C(1) << (dtype))
#define TD_ALL (TD_SET(14) - 1)

/* An operand or result: dense and row-major, from the start of its memory. */
typedef struct {
    td_memory *memory; /* NULL while `supports` is asked */
    const int64_t *shape;
    int64_t nbytes;    /* the memory may be larger; 0 for an operand without elements */
    int32_t dtype;     /* a td_dtype */
    int32_t ndim;
} td_tensor;

/* Booleans are 0 or 1, an element type is its td_dtype, and pairs come one after the other, as in
 * padding (top, bottom, left, right). TD_ABSENT is Python's None. */
enum td_kind { TD_ABSENT = 0, TD_INTS = 1, TD_FLOATS = 2, TD_TEXT = 3 };

typedef struct {
    const char *name;
    const int64_t *ints;
    const double *floats;
    const char *text; /* UTF-8 */
    int32_t kind;     /* a td_kind, which says where the value is */
    int32_t count;    /* of ints or floats */
} td_attribute;

/* One op on its operands. docs/ops.md lists the ops with their attributes; an op with an attribute
 * that cannot be said here (another program, an array) is not asked about. Nothing of a call may be
 * used when the function has returned. */
typedef struct {
    const char *op;
    const td_tensor *inputs;
    const td_tensor *outputs;
    const td_attribute *attributes;
    int32_t n_inputs;
    int32_t n_outputs;
    int32_t n_attributes;
} td_call;

/* An op that the device runs. */
typedef struct {
    const char *op;
    uint64_t dtypes; /* the set that the types of all operands and results have to be of */

    /* A td_answer, from shapes, types and attributes alone; asked once for each combination of
     * them. Operands of ops that work element by element come as the user gave them, and are
     * broadcast to the result's shape before the kernel runs. NULL: always TD_YES. A yes is a
     * promise. */
    int32_t (*supports)(const td_call *call);

    /* Reads inputs and fills outputs, in the order of the stream. Where all results are empty it is
     * not called. The stream is NULL for libraries that have none. */
    int32_t (*run)(td_device *device, td_stream *stream, const td_call *call);
} td_kernel;

/* Zero, or NULL, where the device does not know. */
typedef struct {
    const char *name;      /* of the model, as people know it; lives as long as the device */
    const char *features;  /* capabilities with commas between, "float16,bfloat16" */
    uint64_t memory;       /* bytes */
    double bandwidth;      /* bytes per second */
    double flops;          /* operations per second */
    double copy_latency;   /* seconds that a copy from or to the host takes at least */
    double copy_bandwidth; /* bytes per second of such copies */
    uint32_t units;        /* cores or multiprocessors that work side by side */
} td_properties;

typedef struct {
    uint32_t version;         /* TD_VERSION */
    uint32_t size;            /* sizeof(td_library) */
    const char *name;         /* of the backend and its devices: lower-case letters, underscores */
    const td_kernel *kernels; /* NULL where there are none */
    uint32_t n_kernels;
    uint32_t kernel_size;     /* sizeof(td_kernel) */

    /* -- required ------------------------------------------------------------------------- */

    /* What went wrong in this thread's last call that did not succeed; UTF-8, never NULL. */
    const char *(*message)(void);

    /* How many devices there are; touches the hardware no more than needed. None is no failure. */
    int32_t (*count)(int32_t *count);

    /* Opens device `index`, below the count; called once for each that is used. */
    int32_t (*open)(int32_t index, td_device **device);

    /* Everything of the device is released, and none of it used afterwards. */
    int32_t (*close)(td_device *device);

    /* Fills in what the device knows of itself. */
    int32_t (*properties)(td_device *device, td_properties *properties);

    /* At least `nbytes` (1 or more) bytes, aligned to 64. */
    int32_t (*allocate)(td_device *device, uint64_t nbytes, td_memory **memory);

    /* Work that was submitted before may still use the memory: release in the order of the first
     * stream, or wait. */
    int32_t (*release)(td_device *device, td_memory *memory);

    /* Host to device, `offset` bytes behind the start of `target`; `source` is not read any more
     * when the function returns. */
    int32_t (*copy_in)(td_device *device, td_stream *stream, td_memory *target, uint64_t offset,
                       const void *source, uint64_t nbytes);

    /* Device to host; `target` is filled when the function returns, with what the work that was
     * submitted before has written. */
    int32_t (*copy_out)(td_device *device, td_stream *stream, void *target, td_memory *source,
                        uint64_t offset, uint64_t nbytes);

    /* -- optional: NULL where there is none ------------------------------------------------ */

    /* Sets bytes to a value. Without it they are copied. */
    int32_t (*fill)(td_device *device, td_stream *stream, td_memory *target, uint64_t offset,
                    uint8_t value, uint64_t nbytes);

    /* From `source`, memory of `other`, which is another device of this library or the same, to
     * `target`, memory of `device`, without the host. Work on another device's memory has been
     * waited for; the stream is one of `device`. */
    int32_t (*copy_peer)(td_device *device, td_stream *stream, td_memory *target,
                         uint64_t target_offset, td_device *other, td_memory *source,
                         uint64_t source_offset, uint64_t nbytes);

    /* Bytes that the device has, and has left. */
    int32_t (*memory_left)(td_device *device, uint64_t *total, uint64_t *left);

    /* Streams are queues of work. A library has the eight functions up to `event_destroy`, or none
     * of them, and then has finished every call when it returns. The first stream is made when the
     * device is opened, and goes with it. */
    int32_t (*stream_create)(td_device *device, td_stream **stream);
    int32_t (*stream_destroy)(td_stream *stream); /* waits for its work */
    int32_t (*stream_wait)(td_stream *stream, td_event *event); /* later work starts after it */
    int32_t (*stream_synchronize)(td_stream *stream); /* returns what failed in between, too */
    int32_t (*event_record)(td_stream *stream, td_event **event); /* after all work so far */
    int32_t (*event_done)(td_event *event, int32_t *done);
    int32_t (*event_wait)(td_event *event); /* blocks the caller */
    int32_t (*event_destroy)(td_event *event); /* streams may still have to wait for it */

    /* Seconds between two events that are done. */
    int32_t (*event_seconds)(td_event *start, td_event *end, double *seconds);
} td_library;

#ifdef __cplusplus
#define TD_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define TD_EXPORT __attribute__((visibility("default")))
#endif

/* The exported function. `version` is the framework's TD_VERSION; NULL, with or without a message
 * on standard error, means that the library cannot serve it. The table lives for ever. */
TD_EXPORT const td_library *treadle_device_library(uint32_t version);

/* -- for the library's own use ----------------------------------------------------------------- */

/* The attribute of a name; NULL if the op has none. */
static inline const td_attribute *td_find(const td_call *call, const char *name) {
    for (int32_t i = 0; i < call->n_attributes; i++)
        if (strcmp(call->attributes[i].name, name) == 0) return &call->attributes[i];
    return NULL;
}

/* The first integer of an attribute, `otherwise` where there is none. */
static inline int64_t td_int(const td_call *call, const char *name, int64_t otherwise) {
    const td_attribute *found = td_find(call, name);
    return found && found->kind == TD_INTS && found->count > 0 ? found->ints[0] : otherwise;
}

static inline int64_t td_size(const td_tensor *tensor) {
    int64_t size = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) size *= tensor->shape[i];
    return size;
}

/* This thread's message, one for all files of a library; `td_message` fits into the table. */
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) __thread char td_text[512] = "";
__attribute__((weak)) const char *td_message(void) { return td_text; }
#ifdef __cplusplus
}
#endif

/* Ends a function with words: `return td_say(TD_NO_RANK, "matrices only, not %d axes", n);` */
__attribute__((format(printf, 2, 3), unused))
static int32_t td_say(int32_t result, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(td_text, sizeof td_text, format, values);
    va_end(values);
    return result;
}

#endif
