// Asks NVRTC whether it takes a kernel: nvrtc LIBRARY SOURCE PTX OPTION... Ends with 0 where it does, and writes PTX; prints what it says.
//
// A program of its own, because the library looks for a driver, and would find the stand-in.
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

int main(int count, char **words) {
  if (count < 4) return 2;
  void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  std::stringstream source;
  source << std::ifstream(words[2]).rdbuf();
  void *program = nullptr;
  auto call = [&](const char *name) { return reinterpret_cast<int (*)(...)>(dlsym(library, name)); };
  if (call("nvrtcCreateProgram")(&program, source.str().c_str(), nullptr, 0, nullptr, nullptr)) return 2;
  int code = call("nvrtcCompileProgram")(program, count - 4, words + 4);
  size_t size = 0;
  call("nvrtcGetProgramLogSize")(program, &size);
  std::vector<char> log(size + 1);
  call("nvrtcGetProgramLog")(program, log.data());
  printf("%s", log.data());
  if (!code && !call("nvrtcGetPTXSize")(program, &size)) {
    std::vector<char> ptx(size + 1);
    call("nvrtcGetPTX")(program, ptx.data());
    std::ofstream(words[3]) << ptx.data();
  }
  return code ? 1 : 0;
}
