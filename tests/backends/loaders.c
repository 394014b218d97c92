/* Two loaders with MegEngine's interface of extern C operators: a model of "tests.affine" is a scale
   and an offset, one of "tests.stats" has no bytes and gives an int32 count beside a sum. The former
   adds the second number of a parameter on the device, which is memory of the host, if it has one. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t ndim, shape[8]; } Shape;
typedef struct { uint32_t dtype; Shape shape; } Layout;
typedef struct { Layout layout; void *data; } Tensor;
typedef struct { Layout layout; void *device_ptr; } DeviceTensor;
typedef struct {
    const char *name;
    size_t nr_input, nr_output;
    DeviceTensor *input, *output;
    size_t device_id;
    uint8_t *extra_info;
    size_t extra_info_size;
} Param;
typedef struct Desc {
    uint32_t size, nr_output;
    const char *type_name;
    void (*release)(struct Desc *);
    size_t (*hash)(const struct Desc *);
    int (*is_same)(const struct Desc *, const struct Desc *);
    void (*execute)(const struct Desc *, const Tensor *, const Tensor *);
    void (*infer_shape)(const struct Desc *, const Shape *, Shape *);
    void (*infer_dtype)(const struct Desc *, const uint32_t *, uint32_t *);
    void *user_data;
    Param *dynamic_param;
} Desc;
typedef struct {
    const char *name;
    Desc *(*create)(size_t, const void *, size_t);
} Loader;
typedef struct {
    int (*add)(const Loader *);
    int (*remove)(const char *);
} Api;

static size_t count_of(const Tensor *t) {
    size_t n = 1;
    for (uint32_t i = 0; i < t->layout.shape.ndim; ++i) n *= t->layout.shape.shape[i];
    return n;
}

static Desc *made(const char *name, uint32_t outputs, const void *buf, size_t size) {
    Desc *d = calloc(1, sizeof(Desc));
    d->size = sizeof(Desc);
    d->nr_output = outputs;
    d->type_name = name;
    d->user_data = malloc(size + 1);
    memcpy(d->user_data, buf, size);
    return d;
}

static void affine(const Desc *d, const Tensor *in, const Tensor *out) {
    float numbers[2];
    memcpy(numbers, d->user_data, sizeof numbers);
    if (d->dynamic_param) numbers[1] += ((float *)d->dynamic_param->input[0].device_ptr)[1];
    for (size_t i = 0; i < count_of(in); ++i)
        ((float *)out->data)[i] = ((const float *)in->data)[i] * numbers[0] + numbers[1];
}

static size_t bytes_of(const Param *p, size_t i) {
    Tensor t = {p->input[i].layout, NULL};
    return sizeof(float) * count_of(&t);
}

void copr_param_device_ptr_malloc(Param *p) {
    for (size_t i = 0; i < p->nr_input; ++i) p->input[i].device_ptr = malloc(bytes_of(p, i));
}

void copr_param_device_ptr_h2d(Param *p, void *host, size_t i) {
    memcpy(p->input[i].device_ptr, host, bytes_of(p, i));
}

void copr_param_device_ptr_free(Param *p) {
    for (size_t i = 0; i < p->nr_input; ++i) free(p->input[i].device_ptr);
    fprintf(stderr, "freed %zu, %zu\n", p->nr_input, p->nr_output);
}

static void same_shape(const Desc *d, const Shape *in, Shape *out) { *out = *in; }

static Desc *affine_of(size_t inputs, const void *buf, size_t size) {
    if (inputs != 1 || size != 2 * sizeof(float)) return NULL;
    Desc *d = made("affine", 1, buf, size);
    d->execute = affine;
    d->infer_shape = same_shape;
    return d;
}

static void stats(const Desc *d, const Tensor *in, const Tensor *out) {
    float sum = 0;
    for (size_t i = 0; i < count_of(in); ++i) sum += ((const float *)in->data)[i];
    *(int32_t *)out[0].data = (int32_t)count_of(in);
    *(float *)out[1].data = sum + ((const float *)in[1].data)[0];
}

static void two_scalars(const Desc *d, const Shape *in, Shape *out) {
    out[0].ndim = out[1].ndim = 1;
    out[0].shape[0] = out[1].shape[0] = 1;
}

static void int_and_float(const Desc *d, const uint32_t *in, uint32_t *out) {
    out[0] = 1;
    out[1] = in[0];
}

static Desc *stats_of(size_t inputs, const void *buf, size_t size) {
    Desc *d = made("stats", 2, buf, size);
    d->execute = stats;
    d->infer_shape = two_scalars;
    d->infer_dtype = int_and_float;
    return d;
}

void mgb_c_opr_init(const Api *(*get_api)(int)) {
    if (get_api(0x23) != NULL) return;
    const Api *api = get_api(0x24);
    char name[] = "tests.affine";
    Loader first = {name, affine_of}, second = {"tests.stats", stats_of};
    api->add(&first);
    name[0] = 'x'; /* what is registered has been copied */
    api->add(&second);
    api->add(&second);
}

void later_init(const Api *(*get_api)(int)) {
    const Api *api = get_api(0x24);
    if (api->remove("tests.stats") && !api->remove("tests.stats")) {
        Loader again = {"tests.stats", stats_of};
        api->add(&again);
    }
}
