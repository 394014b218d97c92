/* Runs a gear of a native part on one thread: argv[1] is a folder with its members, laid out as the
 * test writes them. What Python's loader does, in C, since there is no Python in the emulator.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int64_t Run(void *pool, const int64_t *words, const void *bases, int64_t step);

static void *contents(const char *name, size_t least) {
  FILE *file = fopen(name, "rb");
  size_t size;
  void *data;
  if (!file) exit(2);
  fseek(file, 0, SEEK_END);
  size = ftell(file);
  rewind(file);
  data = aligned_alloc(64, ((size > least ? size : least) + 64) / 64 * 64);
  if (fread(data, 1, size, file) != size) exit(3);
  fclose(file);
  return data;
}

int main(int argc, char **argv) {
  char name[512];
  int64_t bases[16], array[8], pool_bytes, threads, data_word, arena, ends, outputs, places;
  FILE *facts, *out;
  void *code;
  char *pool;
  Run *run;
  if (argc < 2 || chdir(argv[1]) || !(facts = fopen("facts", "r"))) return 1;
  if (!(code = dlopen("./code.so", RTLD_NOW))) return puts(dlerror()), 4;
  if (fscanf(facts, "%511s", name) != 1 || !(run = (Run *)dlsym(code, name))) return 5;
  if (fscanf(facts, "%ld %ld %ld %ld %ld %ld %ld", &pool_bytes, &threads, &data_word, &arena, &ends,
             &outputs, &places) != 7)
    return 6;
  int64_t *words = contents("words", 0), *place = contents("places", 0), sizes[16];
  for (int64_t i = 0; i < ends; i++) {
    if (fscanf(facts, "%ld", &sizes[i]) != 1) return 7;
    sprintf(name, "end%d", (int)i);
    bases[i] = (int64_t)contents(name, sizes[i]);
  }
  bases[ends] = bases[ends + 1] = (int64_t)contents("weights", 0);
  bases[ends + 2] = (int64_t)aligned_alloc(64, (arena + 64) / 64 * 64);
  void *kernels[4096];
  for (int64_t i = 0; fscanf(facts, "%511s", name) == 1; i++)
    if (!(kernels[i] = dlsym(code, name))) return puts(name), 8;
  for (int64_t i = 0; i < places; i++) words[place[i]] = (int64_t)kernels[words[place[i]]];
  pool = calloc(1, pool_bytes);
  *(int64_t *)(pool + threads) = 1;
  array[data_word] = (int64_t)bases;
  if (run(pool, words, array, 0) != -1 || !(out = fopen("out", "wb"))) return 9;
  for (int64_t i = ends - outputs; i < ends; i++)
    fwrite((void *)bases[i], 1, sizes[i], out);
  return fclose(out);
}
