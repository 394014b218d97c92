/* Two devices for Treadle in C, ctoy0 and ctoy1: memory behind numbers, copies, some kernels. */

#include <math.h>
#include <stdlib.h>
#include "treadle_device.h"

enum { DEVICES = 2, BLOCKS = 1 << 16, MEMORY = 1 << 28 };

struct td_device {
    void *blocks[BLOCKS];
    uint64_t sizes[BLOCKS], used;
    uint32_t next;
};

static struct td_device devices[DEVICES];

/* What the framework gets for memory is the number of a block, from 1 on: nobody can read there. */
static char *at(td_device *device, td_memory *memory) {
    return device->blocks[(uintptr_t)memory - 1];
}

static int32_t count(int32_t *found) {
    *found = DEVICES;
    return TD_OK;
}

static int32_t open_device(int32_t index, td_device **device) {
    *device = &devices[index];
    return TD_OK;
}

static int32_t close_device(td_device *device) {
    for (uint32_t i = 0; i < BLOCKS; i++) free(device->blocks[i]);
    memset(device, 0, sizeof *device);
    return TD_OK;
}

static int32_t properties(td_device *device, td_properties *known) {
    known->name = device == devices ? "toy in C, first" : "toy in C, second";
    known->memory = MEMORY;
    return TD_OK;
}

static int32_t allocate(td_device *device, uint64_t nbytes, td_memory **memory) {
    uint64_t size = (nbytes + 63) / 64 * 64;
    if (size > MEMORY - device->used)
        return td_say(TD_NO_MEMORY, "no room for %ju bytes", (uintmax_t)nbytes);
    for (uint32_t tries = 0; tries < BLOCKS; tries++) {
        uint32_t i = device->next++ % BLOCKS;
        if (device->blocks[i]) continue;
        device->blocks[i] = aligned_alloc(64, size);
        if (!device->blocks[i]) break;
        device->sizes[i] = size;
        device->used += size;
        *memory = (td_memory *)(uintptr_t)(i + 1);
        return TD_OK;
    }
    return td_say(TD_NO_MEMORY, "no block for %ju bytes", (uintmax_t)nbytes);
}

static int32_t release(td_device *device, td_memory *memory) {
    uintptr_t i = (uintptr_t)memory - 1;
    free(device->blocks[i]);
    device->blocks[i] = NULL;
    device->used -= device->sizes[i];
    return TD_OK;
}

static int32_t copy_in(td_device *device, td_stream *stream, td_memory *target, uint64_t offset,
                       const void *source, uint64_t nbytes) {
    memcpy(at(device, target) + offset, source, nbytes);
    return TD_OK;
}

static int32_t copy_out(td_device *device, td_stream *stream, void *target, td_memory *source,
                        uint64_t offset, uint64_t nbytes) {
    memcpy(target, at(device, source) + offset, nbytes);
    return TD_OK;
}

static int32_t fill(td_device *device, td_stream *stream, td_memory *target, uint64_t offset,
                    uint8_t value, uint64_t nbytes) {
    memset(at(device, target) + offset, value, nbytes);
    return TD_OK;
}

static int32_t copy_peer(td_device *device, td_stream *stream, td_memory *target,
                         uint64_t target_offset, td_device *other, td_memory *source,
                         uint64_t source_offset, uint64_t nbytes) {
    memmove(at(device, target) + target_offset, at(other, source) + source_offset, nbytes);
    return TD_OK;
}

static int32_t memory_left(td_device *device, uint64_t *total, uint64_t *left) {
    *total = MEMORY;
    *left = MEMORY - device->used;
    return TD_OK;
}

#define ELEMENTWISE(name, expression)                                                         \
    static int32_t name(td_device *device, td_stream *stream, const td_call *call) {          \
        const td_tensor *last = &call->inputs[call->n_inputs - 1];                            \
        const float *x = (const float *)at(device, call->inputs[0].memory);                   \
        const float *y = (const float *)at(device, last->memory);                             \
        float *z = (float *)at(device, call->outputs[0].memory);                              \
        for (int64_t i = 0, n = td_size(&call->outputs[0]); i < n; i++) z[i] = expression;    \
        (void)y;                                                                              \
        return TD_OK;                                                                         \
    }

ELEMENTWISE(add, x[i] + y[i])
ELEMENTWISE(sub, x[i] - y[i])
ELEMENTWISE(mul, x[i] * y[i])
ELEMENTWISE(divide, x[i] / y[i])
ELEMENTWISE(neg, -x[i])
ELEMENTWISE(exponential, expf(x[i]))
ELEMENTWISE(relu, x[i] > 0 || isnan(x[i]) ? x[i] : 0)

static int32_t matrices(const td_call *call) {
    for (int32_t i = 0; i < call->n_inputs; i++)
        if (call->inputs[i].ndim != 2)
            return td_say(TD_NO_RANK, "matrices only, not %d axes", call->inputs[i].ndim);
    return TD_YES;
}

static int32_t matmul(td_device *device, td_stream *stream, const td_call *call) {
    const float *x = (const float *)at(device, call->inputs[0].memory);
    const float *y = (const float *)at(device, call->inputs[1].memory);
    float *z = (float *)at(device, call->outputs[0].memory);
    int64_t m = call->outputs[0].shape[0], n = call->outputs[0].shape[1];
    int64_t turned_x = td_int(call, "transpose_x", 0), turned_y = td_int(call, "transpose_y", 0);
    int64_t depth = call->inputs[0].shape[turned_x ? 0 : 1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += x[turned_x ? k * m + i : i * depth + k] *
                       y[turned_y ? j * depth + k : k * n + j];
            z[i * n + j] = sum;
        }
    return TD_OK;
}

/* Elements are only moved, whatever their type: a new shape is a copy. */
static int32_t reshape(td_device *device, td_stream *stream, const td_call *call) {
    const td_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    memcpy(at(device, y->memory), at(device, x->memory), (size_t)y->nbytes);
    return TD_OK;
}

static const td_kernel KERNELS[] = {
    {"add", TD_SET(TD_FLOAT32), NULL, add},
    {"sub", TD_SET(TD_FLOAT32), NULL, sub},
    {"mul", TD_SET(TD_FLOAT32), NULL, mul},
    {"div", TD_SET(TD_FLOAT32), NULL, divide},
    {"neg", TD_SET(TD_FLOAT32), NULL, neg},
    {"exp", TD_SET(TD_FLOAT32), NULL, exponential},
    {"relu", TD_SET(TD_FLOAT32), NULL, relu},
    {"matmul", TD_SET(TD_FLOAT32), matrices, matmul},
    {"reshape", TD_ALL, NULL, reshape},
};

static const td_library LIBRARY = {
    .version = TD_VERSION,
    .size = sizeof(td_library),
    .name = "ctoy",
    .kernels = KERNELS,
    .n_kernels = sizeof KERNELS / sizeof *KERNELS,
    .kernel_size = sizeof(td_kernel),
    .message = td_message,
    .count = count,
    .open = open_device,
    .close = close_device,
    .properties = properties,
    .allocate = allocate,
    .release = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .fill = fill,
    .copy_peer = copy_peer,
    .memory_left = memory_left,
};

TD_EXPORT const td_library *treadle_device_library(uint32_t version) {
    return version == TD_VERSION ? &LIBRARY : NULL;
}
