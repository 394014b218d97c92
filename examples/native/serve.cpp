// Many threads, one model: each has a clone, which shares code, weights and threads with the others.
//
//     c++ serve.cpp -I folder -L folder -lnet -Wl,-rpath,folder -pthread -o serve
//     ./serve input.bin 4
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "net.h"

namespace {

struct Release {
  void operator()(net_model *model) const { net_destroy(model); }
};
using Model = std::unique_ptr<net_model, Release>;

void check(int status) {
  if (status != net_OK) throw std::runtime_error(net_error());
}

Model create(int threads, const net_allocator *allocator) {
  net_model *made = nullptr;
  check(net_create(&made, threads, allocator));
  return Model(made);
}

Model clone(const Model &model) {
  net_model *made = nullptr;
  check(net_clone(model.get(), &made));
  return Model(made);
}

// An allocator that counts what it gave and has not got back.
std::atomic<long> held{0};

void *allocate(void *, size_t nbytes, size_t alignment) {
  void *memory = nullptr;
  if (posix_memalign(&memory, alignment, nbytes)) return nullptr;
  held += static_cast<long>(nbytes);
  return memory;
}

void release(void *, void *memory, size_t nbytes) {
  held -= static_cast<long>(nbytes);
  std::free(memory);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: serve FILE THREADS\n");
    return 2;
  }
  try {
    std::vector<char> input(net_input(0)->nbytes);
    std::ifstream(argv[1], std::ios::binary).read(input.data(), static_cast<long>(input.size()));
    std::atomic<int> different{0};
    {
      const net_allocator counting = {allocate, release, nullptr};
      Model first = create(2, &counting);
      check(net_set_input(first.get(), 0, input.data()));
      check(net_run(first.get()));
      const void *expected = net_get_output(first.get(), 0);
      std::vector<std::thread> threads;
      for (int i = 0; i < std::atoi(argv[2]); i++) {
        threads.emplace_back([&] {
          Model own = clone(first);
          std::vector<char> result(net_output(0)->nbytes);
          check(net_set_input(own.get(), 0, input.data()));
          check(net_set_output(own.get(), 0, result.data()));
          for (int turn = 0; turn < 50; turn++) {
            check(net_run(own.get()));
            different += std::memcmp(result.data(), expected, result.size()) != 0;
          }
        });
      }
      for (auto &thread : threads) thread.join();
    }
    std::printf("%d of %d results differ, %ld bytes are still held\n", different.load(),
                50 * std::atoi(argv[2]), held.load());
    return different || held;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
