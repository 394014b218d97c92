/* A little native library, as a vendor's could be: what tests of adapters wrap. */
#include <stdint.h>

typedef struct {
    int64_t batch, m, n, k, transpose_x, transpose_y;
} matmul_extents;

typedef struct {
    int64_t n, c, h, w, o, kernel_h, kernel_w, out_h, out_w;
    int64_t stride_h, stride_w, top, bottom, left, right, dilation_h, dilation_w, groups;
} conv_extents;

int add(const float *x, const float *y, float *z, int64_t n) {
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
    return 0;
}

int relu(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0;
    return 0;
}

int leaky_relu(const float *x, float *y, int64_t n, double slope) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : (float)slope * x[i];
    return 0;
}

int fails(const float *x, float *y, int64_t n) { return n ? 7 : 0; }

int sum(const float *x, float *y, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            float s = 0;
            for (int64_t j = 0; j < n; j++) s += x[(o * n + j) * inner + i];
            y[o * inner + i] = s;
        }
    return 0;
}

int matmul(const float *x, const float *y, float *z, const matmul_extents *e) {
    for (int64_t b = 0; b < e->batch; b++, x += e->m * e->k, y += e->k * e->n, z += e->m * e->n)
        for (int64_t i = 0; i < e->m; i++)
            for (int64_t j = 0; j < e->n; j++) {
                float s = 0;
                for (int64_t k = 0; k < e->k; k++)
                    s += x[e->transpose_x ? k * e->m + i : i * e->k + k] *
                         y[e->transpose_y ? j * e->k + k : k * e->n + j];
                z[i * e->n + j] = s;
            }
    return 0;
}

/* One of the three gets what the other two have: y of x and w, x of w and y, w of x and y. */
static void loop(const conv_extents *e, int which, float *x, float *w, float *y) {
    int64_t per = e->c / e->groups, out = e->o / e->groups;
    for (int64_t n = 0; n < e->n; n++)
        for (int64_t o = 0; o < e->o; o++)
            for (int64_t c = 0; c < per; c++)
                for (int64_t p = 0; p < e->out_h; p++)
                    for (int64_t q = 0; q < e->out_w; q++)
                        for (int64_t i = 0; i < e->kernel_h; i++)
                            for (int64_t j = 0; j < e->kernel_w; j++) {
                                int64_t a = p * e->stride_h + i * e->dilation_h - e->top;
                                int64_t b = q * e->stride_w + j * e->dilation_w - e->left;
                                if (a < 0 || b < 0 || a >= e->h || b >= e->w) continue;
                                int64_t channel = o / out * per + c;
                                float *px = x + ((n * e->c + channel) * e->h + a) * e->w + b;
                                float *pw = w + ((o * per + c) * e->kernel_h + i) * e->kernel_w + j;
                                float *py = y + ((n * e->o + o) * e->out_h + p) * e->out_w + q;
                                if (which == 0) *py += *px * *pw;
                                if (which == 1) *px += *py * *pw;
                                if (which == 2) *pw += *px * *py;
                            }
}

static void zero(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = 0;
}

int conv(float *x, float *w, float *y, const conv_extents *e) {
    zero(y, e->n * e->o * e->out_h * e->out_w);
    loop(e, 0, x, w, y);
    return 0;
}

int conv_grad_input(float *y, float *w, float *x, const conv_extents *e) {
    zero(x, e->n * e->c * e->h * e->w);
    loop(e, 1, x, w, y);
    return 0;
}

int conv_grad_weight(float *x, float *y, float *w, const conv_extents *e) {
    zero(w, e->o * (e->c / e->groups) * e->kernel_h * e->kernel_w);
    loop(e, 2, x, w, y);
    return 0;
}
