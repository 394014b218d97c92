/* Runs the library `net` on floats from a file, and prints its first output.
 *
 *     cc run.c -I folder -L folder -lnet -Wl,-rpath,folder -o run
 *     ./run input.bin 2
 */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, net_error());
  return 1;
}

int main(int argc, char **argv) {
  net_model *model;
  const net_tensor *in = net_input(0), *out = net_output(0);
  if (argc < 2 || !in || !out) {
    fprintf(stderr, "usage: run FILE [THREADS]\n");
    return 2;
  }
  float *x = malloc(in->nbytes);
  FILE *file = fopen(argv[1], "rb");
  if (!x || !file || fread(x, 1, in->nbytes, file) != in->nbytes) {
    fprintf(stderr, "%s does not hold %zu bytes\n", argv[1], in->nbytes);
    return 2;
  }
  fclose(file);
  if (net_create(&model, argc > 2 ? atoi(argv[2]) : 0, NULL)) return fail("create");
  if (net_set_input(model, 0, x)) return fail("set_input");
  if (net_run(model)) return fail("run");
  const float *y = net_get_output(model, 0);
  for (size_t i = 0; i < out->nbytes / sizeof(float); i++) printf("%.9g\n", y[i]);
  net_destroy(model);
  free(x);
  return 0;
}
