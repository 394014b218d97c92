/* Runs the library `ops` on the inputs in a file, one behind the other, and writes all outputs. */
#include <stdio.h>
#include <stdlib.h>

#include "ops.h"

int main(int argc, char **argv) {
  ops_model *model;
  FILE *in, *out;
  if (argc < 4 || !(in = fopen(argv[1], "rb")) || !(out = fopen(argv[2], "wb"))) return 2;
  if (ops_create(&model, atoi(argv[3]), NULL)) return puts(ops_error()), 1;
  for (int i = 0; i < ops_inputs(); i++) {
    const ops_tensor *tensor = ops_input(i);
    char *data = malloc(tensor->nbytes + 64); /* Windows has no aligned_alloc */
    if (data) data += 63 - ((uintptr_t)data + 63) % 64;
    if (!data || fread(data, 1, tensor->nbytes, in) != tensor->nbytes) return 3;
    if (ops_set_input(model, i, data)) return puts(ops_error()), 1;
  }
  if (ops_run(model)) return puts(ops_error()), 1;
  for (int i = 0; i < ops_outputs(); i++)
    if (fwrite(ops_get_output(model, i), 1, ops_output(i)->nbytes, out) != ops_output(i)->nbytes)
      return 4;
  return fclose(out);
}
