// A stand-in for NVIDIA's driver and for NVRTC, for computers without a GPU: `libcuda.so.1` and `libnvrtc.so`.
//
// CubeCL's CUDA runtime writes every kernel as CUDA C++. NVRTC (NVIDIA's compiler, which needs no GPU) is asked whether it
// takes the source; then the same source is compiled for the CPU by g++ with `device.hpp` and run, one block of threads
// after another, so that the results can be compared with the CPU's. It shows that kernels compile and what they compute.
// It says nothing about speed, about most races between threads, or about what ptxas and the hardware make of the code.
//
// Environment:
//   CUDA_STAND_IN_ARCH     compute capability, such as 75 or 90 (75 without tensor cores if unset)
//   CUDA_STAND_IN_CACHE    a folder for compiled kernels (needed)
//   CUDA_STAND_IN_NVRTC    path of the real libnvrtc; unset: NVRTC is not asked
//   CUDA_STAND_IN_RUN      0: kernels are compiled and not run
//   CUDA_STAND_IN_SKIP     words with spaces between them: kernels with one of them in their name are not run, so that the time that is
//                          left is the host's
//   CUDA_STAND_IN_TENSOR   1: kernels on tensor cores seem a hundred times faster, so that autotune takes them as on a real GPU
//   CUDA_STAND_IN_FAVOUR   products with this word in their source seem the fastest, all others slow: autotune asks for one after the
//                          other and stops at the first that is nearly as fast as it thinks possible
//   CUDA_STAND_IN_REVERSE  1: blocks, warps and threads run from the last to the first, and copies beside the threads at once
//                          and not at last; where a barrier is missing, one of the two orders reads what is not written yet
//                          or no longer there
//   CUDA_STAND_IN_REPORT   a file to which launches, milliseconds and name of every kernel are added at the end
//   CUDA_STAND_IN_MEMORY   memory of the device in MiB (6144 if unset)
//   CUDA_STAND_IN_PROCESSORS  its multiprocessors (8 if unset)
//
// What NVRTC makes of a kernel is what CubeCL keeps of it, behind a comment: a GPU's driver takes it too.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "host.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

std::mutex lock;

const char *environment(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

int arch() {
  static int value = atoi(environment("CUDA_STAND_IN_ARCH", "75"));
  return value;
}

bool runs() {
  static bool value = strcmp(environment("CUDA_STAND_IN_RUN", "1"), "0") != 0;
  return value;
}

bool reversed() {
  static bool value = strcmp(environment("CUDA_STAND_IN_REVERSE", "0"), "1") == 0;
  return value;
}

// The i-th of n in the order in which things run.
size_t turn(size_t i, size_t n) { return reversed() ? n - 1 - i : i; }

size_t memory() {
  static size_t value = strtoull(environment("CUDA_STAND_IN_MEMORY", "6144"), nullptr, 10) << 20;
  return value;
}

const std::string &cache() {
  static std::string value = [] {
    const char *folder = getenv("CUDA_STAND_IN_CACHE");
    if (!folder || !*folder) {
      fprintf(stderr, "CUDA stand-in: CUDA_STAND_IN_CACHE must name a folder\n");
      abort();
    }
    return std::string(folder);
  }();
  return value;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What events say: the time, less what tensor cores would have saved.
double saved_ms = 0;

// --- Memory -----------------------------------------------------------------------------------------------------------

std::map<uintptr_t, size_t> allocations;
size_t used = 0;

// Memory of a real device holds what was there before; NaN shows what is read before it is written.
int allocate(uintptr_t *out, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  if (used + bytes > memory()) return OUT_OF_MEMORY;
  void *at = mmap(nullptr, bytes + 512, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  // What no kernel wrote should be seen; where some are not run on purpose, it must not spoil the rest.
  if (runs() && !*environment("CUDA_STAND_IN_SKIP", "") && bytes <= (size_t(256) << 20)) memset(at, 0xff, bytes);
  allocations[uintptr_t(at)] = bytes;
  used += bytes;
  *out = uintptr_t(at);
  return SUCCESS;
}

int release(uintptr_t at) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = allocations.find(at);
  if (found == allocations.end()) return INVALID_VALUE;
  munmap(reinterpret_cast<void *>(at), found->second + 512);
  used -= found->second;
  allocations.erase(found);
  return SUCCESS;
}

// --- Threads of a block, each with a stack of its own -----------------------------------------------------------------

extern "C" void cuda_stand_in_switch(void **save, void *to);
asm(R"(
.text
.globl cuda_stand_in_switch
.hidden cuda_stand_in_switch
.type cuda_stand_in_switch,@function
cuda_stand_in_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_stand_in_switch,.-cuda_stand_in_switch
)");

constexpr size_t STACK = 256 << 10;

// Some bytes on their way to shared memory, and zeros behind them.
struct Piece {
  char *to;
  const char *from;
  unsigned bytes, from_bytes;
};

struct Fiber {
  char *stack = nullptr;
  void *sp = nullptr;
  Wait wait = Wait::None;
  bool done = true;
  // For Wait::Phase.
  void *barrier = nullptr;
  unsigned long phase = 0;
  // `cp.async` since the last barrier that it was bound to.
  std::vector<Piece> pieces;
};

std::vector<Fiber> fibers;
void *scheduler_sp;
Host host;
void (*current_kernel)(void **);
void **current_arguments;
const char *current_name;

// For what hangs on a GPU, or what it answers by refusing all that comes after.
[[noreturn]] void fail(const char *what) {
  fprintf(stderr, "CUDA stand-in: %s: %s\n", current_name, what);
  abort();
}

void yield_to_scheduler(Wait wait) {
  Fiber &fiber = fibers[host.lane];
  fiber.wait = wait;
  cuda_stand_in_switch(&fiber.sp, scheduler_sp);
}

void fiber_main() {
  for (;;) {
    current_kernel(current_arguments);
    fibers[host.lane].done = true;
    yield_to_scheduler(Wait::None);
  }
}

void prepare(size_t threads) {
  while (fibers.size() < threads) {
    Fiber fiber;
    fiber.stack = static_cast<char *>(mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    auto top = reinterpret_cast<void **>(fiber.stack + STACK - 64);
    *--top = nullptr;                                     // where fiber_main would return to: it does not
    *--top = reinterpret_cast<void *>(fiber_main);        // taken by `ret`
    for (int i = 0; i < 6; i++) *--top = nullptr;         // saved registers
    fiber.sp = top;
    fibers.push_back(fiber);
  }
}

void set_thread(size_t index, const Dim &block) {
  host.lane = index;
  host.thread.x = index % block.x;
  host.thread.y = index / block.x % block.y;
  host.thread.z = index / block.x / block.y;
}

// --- Barriers in shared memory, and copies beside the threads ----------------------------------------------------------

// A phase ends when all arrivals and all bytes that were announced are there (PTX ISA, mbarrier).
struct Barrier {
  unsigned arrivals, missing;
  long bytes;
  unsigned long phase;
};

// A copy under way: pieces, whose end is an arrival, or a box, whose bytes the barrier counts.
struct Copy {
  void *barrier;
  std::vector<Piece> pieces;
  bool is_box = false;
  TensorMap map{};
  int at[5] = {};
  char *to = nullptr;
};

std::map<void *, Barrier> barriers;
std::deque<Copy> copies;

Barrier &barrier_at(void *at) {
  auto found = barriers.find(at);
  if (found == barriers.end()) fail("a barrier is used that was not initialised");
  return found->second;
}

void barrier_init(void *at, unsigned arrivals) {
  if (uintptr_t(at) % 8) fail("a barrier is not aligned to 8 bytes");
  barriers[at] = {arrivals, arrivals, 0, 0};
}

void settle(void *at, Barrier &barrier) {
  if (barrier.missing || barrier.bytes) return;
  barrier.missing = barrier.arrivals;
  barrier.phase++;
  for (auto &fiber : fibers)
    if (fiber.wait == Wait::Phase && fiber.barrier == at && fiber.phase < barrier.phase) fiber.wait = Wait::None;
}

unsigned long barrier_arrive(void *at, unsigned arrivals, unsigned bytes) {
  Barrier &barrier = barrier_at(at);
  if (arrivals > barrier.missing) fail("more threads arrive at a barrier than it expects");
  unsigned long phase = barrier.phase;
  barrier.bytes += bytes;
  barrier.missing -= arrivals;
  settle(at, barrier);
  return phase;
}

unsigned long barrier_phase(void *at) { return barrier_at(at).phase; }

void barrier_await(void *at, unsigned long phase) {
  if (barrier_at(at).phase > phase) return;
  fibers[host.lane].barrier = at;
  fibers[host.lane].phase = phase;
  yield_to_scheduler(Wait::Phase);
}

// Where 16 bytes of a box lie in shared memory: bits 4 to 6 of the address are changed by bits 7 to 9.
size_t swizzled(size_t at, unsigned mode) {
  static const size_t masks[] = {0, 1, 3, 7};
  return at ^ (at >> 7 & masks[mode]) << 4;
}

void perform(const Piece &piece) {
  memcpy(piece.to, piece.from, piece.from_bytes);
  memset(piece.to + piece.from_bytes, 0, piece.bytes - piece.from_bytes);
}

// How many bytes.
long perform_box(const Copy &copy) {
  const TensorMap &map = copy.map;
  size_t rows = 1, bytes = map.box[0] * map.bytes, start = copy.to - host.shared;
  for (int axis = 1; axis < map.rank; axis++) rows *= map.box[axis];
  for (size_t row = 0; row < rows; row++) {
    const char *from = map.at + copy.at[0] * long(map.bytes);
    bool inside = true;
    for (size_t axis = 1, left = row; axis < map.rank; left /= map.box[axis++]) {
      long at = copy.at[axis] + long(left % map.box[axis]);
      inside &= at >= 0 && size_t(at) < map.sizes[axis];
      from += at * long(map.steps[axis]);
    }
    for (size_t done = 0; done < bytes; done += 16) {
      char *to = host.shared + swizzled(start + row * bytes + done, map.swizzle);
      for (size_t i = 0; i < 16; i += map.bytes) {
        long at = copy.at[0] + long((done + i) / map.bytes);
        if (inside && at >= 0 && size_t(at) < map.sizes[0])
          memcpy(to + i, from + done + i, map.bytes);
        else
          memset(to + i, 0, map.bytes);
        if (!map.rounded) continue;
        uint32_t bits;  // of f32, to TF32
        memcpy(&bits, to + i, 4);
        bits = (bits + 0x1000) & ~0x1fffu;
        memcpy(to + i, &bits, 4);
      }
    }
  }
  return long(rows * bytes);
}

void perform(const Copy &copy) {
  Barrier &barrier = barrier_at(copy.barrier);
  for (auto &piece : copy.pieces) perform(piece);
  if (copy.is_box)
    barrier.bytes -= perform_box(copy);
  else
    barrier.missing--;
  settle(copy.barrier, barrier);
}

// A GPU copies when it likes: here as late as can be, or at once.
void begin(Copy &&copy) {
  if (reversed())
    perform(copy);
  else
    copies.push_back(std::move(copy));
}

void copy_piece(void *to, const void *from, unsigned bytes, unsigned from_bytes) {
  if (from_bytes > bytes) fail("cp.async reads more than it writes");
  if (uintptr_t(to) % bytes || (from_bytes && uintptr_t(from) % bytes)) fail("cp.async of an address that is not aligned to its bytes");
  Piece piece = {static_cast<char *>(to), static_cast<const char *>(from), bytes, from_bytes};
  if (reversed())
    perform(piece);
  else
    fibers[host.lane].pieces.push_back(piece);
}

// The arrival comes on top of those that the barrier expects.
void arrive_after_copies(void *at) {
  barrier_at(at).missing++;
  Copy copy;
  copy.barrier = at;
  copy.pieces.swap(fibers[host.lane].pieces);
  begin(std::move(copy));
}

void copy_box(void *to, const void *map, const int *at, void *barrier) {
  Copy copy;
  copy.is_box = true;
  memcpy(&copy.map, map, sizeof copy.map);
  memcpy(copy.at, at, copy.map.rank * sizeof(int));
  copy.to = static_cast<char *>(to);
  copy.barrier = barrier;
  barrier_at(barrier);
  if ((copy.to - host.shared) % 128) fail("a box is copied to an address that is not aligned to 128 bytes");
  begin(std::move(copy));
}

// --- A block ----------------------------------------------------------------------------------------------------------

// Runs the threads of a warp until none can go on, and says whether any did. Its exchange happens when no thread can go on
// without it (those that wait elsewhere or have ended do not take part, as `__activemask` says). Threads that wait for a phase
// are waited for, unless `hurry`.
bool run_warp(size_t first, size_t last, const Dim &block, bool hurry) {
  bool ran = false;
  for (;;) {
    bool again = false;
    for (size_t lane = 0; lane < last - first; lane++) {
      size_t i = first + turn(lane, last - first);
      if (fibers[i].done || fibers[i].wait != Wait::None) continue;
      set_thread(i, block);
      cuda_stand_in_switch(&scheduler_sp, fibers[i].sp);
      again = true;
    }
    ran |= again;
    if (again) continue;
    uint32_t active = 0;
    bool late = false;
    for (size_t i = first; i < last; i++) {
      if (fibers[i].done) continue;
      if (fibers[i].wait == Wait::Warp) active |= 1u << (i - first);
      late |= fibers[i].wait == Wait::Phase;
    }
    if (!active || (late && !hurry)) return ran;
    host.active[first / 32] = active;
    host.turn[first / 32]++;
    for (size_t i = first; i < last; i++)
      if (fibers[i].wait == Wait::Warp) fibers[i].wait = Wait::None;
  }
}

// Runs one block. Only when no thread can go on do things happen that none of them does: first what `__syncthreads` waits for,
// then one copy after the other.
void run_block(size_t threads, const Dim &block) {
  barriers.clear();
  for (size_t i = 0; i < threads; i++) {
    fibers[i].done = false;
    fibers[i].wait = Wait::None;
    fibers[i].pieces.clear();
  }
  size_t warps = (threads + 31) / 32;
  auto run = [&](bool hurry) {
    bool ran = false;
    for (size_t warp = 0; warp < warps; warp++) {
      size_t first = turn(warp, warps) * 32, last = first + 32 < threads ? first + 32 : threads;
      ran |= run_warp(first, last, block, hurry);
    }
    return ran;
  };
  for (;;) {
    if (run(false)) continue;
    size_t alive = 0, at_barrier = 0;
    for (size_t i = 0; i < threads; i++) {
      alive += !fibers[i].done;
      at_barrier += !fibers[i].done && fibers[i].wait == Wait::Block;
    }
    if (!alive) break;
    if (alive == at_barrier) {
      for (size_t i = 0; i < threads; i++) fibers[i].wait = Wait::None;
    } else if (!copies.empty()) {
      perform(copies.front());
      copies.pop_front();
    } else if (!run(true)) {
      fail("threads wait for a phase of a barrier that does not end");
    }
  }
  if (!copies.empty()) fail("a block ends before its copies");
}

// --- Kernels ----------------------------------------------------------------------------------------------------------

struct Kernel {
  std::string name;
  void (*run)(void **) = nullptr;
  bool waits = false;
  bool skipped = false;
  double saved = 0;  // the share of its time that seems not to pass
  uint64_t launches = 0;
  double ms = 0;
};

struct Program {
  std::string source, log, result;
};

uint64_t hash(const std::string &text) {
  uint64_t value = 1469598103934665603ull;
  for (unsigned char c : text) value = (value ^ c) * 1099511628211ull;
  return value;
}

bool exists(const std::string &path) { return access(path.c_str(), R_OK) == 0; }

std::string read(const std::string &path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const std::string &path, const std::string &text) {
  std::string part = path + "." + std::to_string(getpid());
  std::ofstream(part) << text;
  rename(part.c_str(), path.c_str());
}

std::string folder_of_this_library() {
  Dl_info info;
  dladdr(reinterpret_cast<void *>(&hash), &info);
  char *real = realpath(info.dli_fname, nullptr);
  std::string path = real ? real : info.dli_fname;
  free(real);
  return path.substr(0, path.rfind('/'));
}

// NVRTC's word on the source; kept, because the same kernel comes back in every process.
bool nvrtc_takes(const std::string &stem, int count, const char *const *options, std::string &log) {
  const char *library = getenv("CUDA_STAND_IN_NVRTC");
  if (!library || !*library) return true;
  std::string verdict = stem + ".sm" + std::to_string(arch());
  if (!exists(verdict)) {
    std::string said = verdict + "." + std::to_string(getpid());
    // NVRTC finds its own parts beside itself, and not the stand-in.
    std::string real = library, beside = real.substr(0, real.rfind('/'));
    std::string command = "env LD_LIBRARY_PATH='" + beside + "' '" + folder_of_this_library() + "/nvrtc' '" + real + "' '" + stem + ".cu' '" + verdict + ".ptx'";
    for (int i = 0; i < count; i++) command += std::string(" '") + options[i] + "'";
    int code = system((command + " > '" + said + "' 2>&1").c_str());
    write(verdict, (code ? "refused\n" : "taken\n") + read(said));
    unlink(said.c_str());
  }
  std::string text = read(verdict);
  if (text.rfind("taken", 0) == 0) return true;
  log += "NVRTC: " + text;
  return false;
}

std::string entry_name(const std::string &source) {
  size_t at = source.find("__launch_bounds__(");
  at = source.find(')', at) + 1;
  size_t cluster = source.find("__cluster_dims__(", at), brace = source.find('{', at);
  if (cluster != std::string::npos && cluster < brace) at = source.find(')', cluster) + 1;
  while (isspace(source[at])) at++;
  size_t end = source.find('(', at);
  std::string name = source.substr(at, end - at);
  while (!name.empty() && isspace(name.back())) name.pop_back();
  return name;
}

size_t end_of_string(const std::string &text, size_t at) {
  for (at++; text[at] != '"'; at++)
    if (text[at] == '\\') at++;
  return at + 1;
}

// `asm volatile("mma.sync.x {%0}, ..." : "=f"(d) : "r"(a) : "memory");` as a call of a function of device.hpp that is named
// after the instruction: `cu_mma_sync_x("...", d, a);`
void asm_as_calls(std::string &text) {
  for (size_t at = 0; (at = text.find("asm", at)) != std::string::npos;) {
    size_t open = text.find('(', at);
    bool is_asm = (at == 0 || !(isalnum(text[at - 1]) || text[at - 1] == '_')) && open != std::string::npos;
    std::string between = is_asm ? text.substr(at + 3, open - at - 3) : "";
    if (!is_asm || (between.find_first_not_of(' ') != std::string::npos && between.find("volatile") != 1)) {
      at += 3;
      continue;
    }
    size_t start = text.find('"', open), end = end_of_string(text, start), colons = 0;
    std::string ptx = text.substr(start, end - start), name = "cu_", arguments;
    size_t from = ptx.find("elect.sync");  // declares registers first
    if (from == std::string::npos) from = ptx.find_first_not_of("\"{ ");
    for (size_t i = from; i < ptx.size() && !isspace(ptx[i]) && ptx[i] != ';' && ptx[i] != '"'; i++) name += isalnum(ptx[i]) ? ptx[i] : '_';
    size_t i = end;
    while (text[i] != ')') {
      if (text[i] == ':') colons++;
      if (text[i] == '"') {
        i = end_of_string(text, i);
        if (colons > 2) continue;  // what is clobbered
        while (text[i] != '(') i++;
        size_t depth = 0, first = i + 1;
        do {
          depth += text[i] == '(';
          depth -= text[i] == ')';
          i++;
        } while (depth);
        arguments += ", " + text.substr(first, i - 1 - first);
        continue;
      }
      i++;
    }
    std::string call = name + "(" + ptx + arguments + ")";
    text.replace(at, i + 1 - at, call);
    at += call.size();
  }
}

std::string library_of(const std::string &stem) { return stem + ".sm" + std::to_string(arch()) + ".so"; }

// The same source for the CPU.
bool host_takes(const std::string &source, const std::string &stem, std::string &log) {
  std::string library = library_of(stem);
  if (!runs() || exists(library)) return true;
  std::string text = source, name = entry_name(source);
  // extern __shared__ __align__(16) char NAME[]; is the block's memory.
  for (size_t at = 0; (at = text.find("extern __shared__", at)) != std::string::npos;) {
    size_t end = text.find(';', at), bracket = text.find('[', at), start = bracket;
    while (isalnum(text[start - 1]) || text[start - 1] == '_') start--;
    std::string declared = text.substr(start, bracket - start);
    text.replace(at, end - at, "char *" + declared + " = cu_shared()");
  }
  asm_as_calls(text);
  std::string here = folder_of_this_library();
  text = "#include \"device.hpp\"\n" + text + "\nCU_ENTRY(" + name + ")\n";
  std::string cpp = stem + ".cpp", part = stem + "." + std::to_string(getpid()) + ".so", errors = stem + ".errors";
  write(cpp, text);
  std::string command = "g++ -std=c++17 -O2 -march=native -D__CUDA_ARCH__=" + std::to_string(arch() * 10) + " -fPIC -shared -fno-strict-aliasing -w -fmax-errors=5 -iquote '" + here + "' -I '" + here +
                        "/include' -o '" + part + "' '" + cpp + "' 2> '" + errors + "'";
  if (system(command.c_str()) != 0) {
    log += "g++: " + read(errors);
    return false;
  }
  rename(part.c_str(), library.c_str());
  return true;
}

std::vector<Kernel *> loaded;

void report() {
  const char *path = getenv("CUDA_STAND_IN_REPORT");
  if (!path || !*path) return;
  FILE *file = fopen(path, "a");
  if (!file) return;
  for (auto *kernel : loaded) fprintf(file, "%llu\t%.1f\t%s\n", (unsigned long long)kernel->launches, kernel->ms, kernel->name.c_str());
  fclose(file);
}

struct Reporter {
  ~Reporter() { report(); }
} reporter;

}  // namespace

// --- NVRTC ------------------------------------------------------------------------------------------------------------

EXPORT int nvrtcCreateProgram(void **out, const char *source, const char *, int, const char *const *, const char *const *) {
  auto *program = new Program;
  program->source = source;
  *out = program;
  return 0;
}

EXPORT int nvrtcCompileProgram(void *handle, int count, const char *const *options) {
  auto *program = static_cast<Program *>(handle);
  char name[64];
  snprintf(name, sizeof name, "/%016llx", (unsigned long long)hash(program->source));
  std::string stem = cache() + name;
  if (!exists(stem + ".cu")) write(stem + ".cu", program->source);
  bool taken = nvrtc_takes(stem, count, options, program->log);
  bool built = host_takes(program->source, stem, program->log);
  program->result = "// " + stem + "\n" + read(stem + ".sm" + std::to_string(arch()) + ".ptx");
  if (!taken || !built) {
    fprintf(stderr, "CUDA stand-in: %s.cu\n%s\n", stem.c_str(), program->log.c_str());
    return 6;
  }
  return 0;
}

EXPORT int nvrtcGetPTXSize(void *handle, size_t *size) {
  *size = static_cast<Program *>(handle)->result.size() + 1;
  return 0;
}

EXPORT int nvrtcGetPTX(void *handle, char *out) {
  strcpy(out, static_cast<Program *>(handle)->result.c_str());
  return 0;
}

EXPORT int nvrtcGetProgramLogSize(void *handle, size_t *size) {
  *size = static_cast<Program *>(handle)->log.size() + 1;
  return 0;
}

EXPORT int nvrtcGetProgramLog(void *handle, char *out) {
  strcpy(out, static_cast<Program *>(handle)->log.c_str());
  return 0;
}

EXPORT int nvrtcDestroyProgram(void **handle) {
  delete static_cast<Program *>(*handle);
  *handle = nullptr;
  return 0;
}

EXPORT const char *nvrtcGetErrorString(int code) { return code ? "refused" : "no error"; }

// --- Driver: the device -----------------------------------------------------------------------------------------------

EXPORT int cuInit(unsigned) { return SUCCESS; }
EXPORT int cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
EXPORT int cuDeviceGet(int *device, int) { return *device = 0, SUCCESS; }
EXPORT int cuDeviceGetName(char *name, int size, int) {
  // CubeCL asks the name whether a device of capability 7.5 has tensor cores.
  snprintf(name, size, arch() == 75 ? "stand-in GTX" : "stand-in");
  return SUCCESS;
}
EXPORT int cuDeviceGetPCIBusId(char *id, int size, int) {
  snprintf(id, size, "0000:00:00.0");
  return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = memory(), SUCCESS; }
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = memory() - used, *total = memory(), SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
    case 1: *value = 1024; break;                     // threads a block
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;               // blocks
    case 6: case 7: *value = 65535; break;
    case 10: *value = 32; break;                      // warp
    case 16: *value = atoi(environment("CUDA_STAND_IN_PROCESSORS", "8")); break;
    case 75: *value = arch() / 10; break;
    case 76: *value = arch() % 10; break;
    case 97: *value = arch() >= 90 ? 232448 : arch() >= 80 ? 101376 : 65536; break;
    case 115: *value = 1; break;                      // memory pools
    default: *value = 0;
  }
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int) { return *context = &host, SUCCESS; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
EXPORT int cuCtxSetCurrent(void *) { return SUCCESS; }
EXPORT int cuCtxGetCurrent(void **context) { return *context = &host, SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { return *device = 0, SUCCESS; }
EXPORT int cuCtxSynchronize() { return SUCCESS; }
EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = 0, SUCCESS; }
EXPORT int cuGetErrorName(int code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return SUCCESS;
}
EXPORT int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

// --- Driver: streams and events. Everything has happened when a call returns -------------------------------------------

EXPORT int cuStreamCreate(void **stream, unsigned) { return *stream = new char, SUCCESS; }
EXPORT int cuStreamCreateWithPriority(void **stream, unsigned, int) { return *stream = new char, SUCCESS; }
EXPORT int cuStreamDestroy_v2(void *stream) { return delete static_cast<char *>(stream), SUCCESS; }
EXPORT int cuStreamSynchronize(void *) { return SUCCESS; }
EXPORT int cuStreamQuery(void *) { return SUCCESS; }
EXPORT int cuStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }
EXPORT int cuEventCreate(void **event, unsigned) { return *event = new double(0), SUCCESS; }
EXPORT int cuEventDestroy_v2(void *event) { return delete static_cast<double *>(event), SUCCESS; }
EXPORT int cuEventRecord(void *event, void *) { return *static_cast<double *>(event) = now_ms() - saved_ms, SUCCESS; }
EXPORT int cuEventSynchronize(void *) { return SUCCESS; }
EXPORT int cuEventQuery(void *) { return SUCCESS; }
EXPORT int cuEventElapsedTime(float *ms, void *from, void *to) {
  *ms = float(*static_cast<double *>(to) - *static_cast<double *>(from));
  return SUCCESS;
}
EXPORT int cuEventElapsedTime_v2(float *ms, void *from, void *to) { return cuEventElapsedTime(ms, from, to); }

// --- Driver: memory ---------------------------------------------------------------------------------------------------

EXPORT int cuMemAlloc_v2(uintptr_t *at, size_t bytes) { return allocate(at, bytes); }
EXPORT int cuMemAllocAsync(uintptr_t *at, size_t bytes, void *) { return allocate(at, bytes); }
EXPORT int cuMemFree_v2(uintptr_t at) { return release(at); }
EXPORT int cuMemFreeAsync(uintptr_t at, void *) { return release(at); }
EXPORT int cuMemAllocHost_v2(void **at, size_t bytes) { return posix_memalign(at, 4096, bytes ? bytes : 1) ? OUT_OF_MEMORY : SUCCESS; }
EXPORT int cuMemFreeHost(void *at) { return free(at), SUCCESS; }
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *) {
  return memcpy(reinterpret_cast<void *>(to), from, bytes), SUCCESS;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *) {
  return memcpy(to, reinterpret_cast<void *>(from), bytes), SUCCESS;
}
EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *) {
  return memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes), SUCCESS;
}
EXPORT int cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, void *) {
  return memset(reinterpret_cast<void *>(at), value, bytes), SUCCESS;
}

struct Copy2D {
  size_t src_x, src_y;
  unsigned src_type;
  const void *src_host;
  uintptr_t src_device;
  void *src_array;
  size_t src_pitch, dst_x, dst_y;
  unsigned dst_type;
  void *dst_host;
  uintptr_t dst_device;
  void *dst_array;
  size_t dst_pitch, width, height;
};

EXPORT int cuMemcpy2DAsync_v2(const Copy2D *copy, void *) {
  enum { HOST = 1 };
  auto *from = copy->src_type == HOST ? static_cast<const char *>(copy->src_host) : reinterpret_cast<const char *>(copy->src_device);
  auto *to = copy->dst_type == HOST ? static_cast<char *>(copy->dst_host) : reinterpret_cast<char *>(copy->dst_device);
  for (size_t row = 0; row < copy->height; row++)
    memcpy(to + (copy->dst_y + row) * copy->dst_pitch + copy->dst_x, from + (copy->src_y + row) * copy->src_pitch + copy->src_x, copy->width);
  return SUCCESS;
}

// --- Driver: kernels --------------------------------------------------------------------------------------------------

EXPORT int cuModuleLoadData(void **module, const void *image) {
  std::lock_guard<std::mutex> guard(lock);
  std::string text = static_cast<const char *>(image);
  std::string stem = text.substr(3, text.find('\n') - 3);
  auto *kernel = new Kernel;
  std::string source = read(stem + ".cu");
  kernel->name = entry_name(source) + (source.find("tf32") != std::string::npos ? " tf32 " : " ") + stem.substr(stem.rfind('/') + 1);
  // All that makes threads wait for each other is called so: shuffles, wmma, `mma.sync`.
  kernel->waits = source.find("sync") != std::string::npos || source.find("cuda::barrier") != std::string::npos;
  static bool tensor = strcmp(environment("CUDA_STAND_IN_TENSOR", "0"), "1") == 0;
  static const char *favoured = environment("CUDA_STAND_IN_FAVOUR", "");
  if (tensor && (source.find("mma_sync(") != std::string::npos || source.find("mma.sync") != std::string::npos))
    kernel->saved = 0.99;
  if (*favoured && kernel->name.find("matmul") != std::string::npos) kernel->saved = source.find(favoured) != std::string::npos ? 0.9999 : -9;
  std::istringstream words(environment("CUDA_STAND_IN_SKIP", ""));
  for (std::string word; words >> word;) kernel->skipped |= kernel->name.find(word) != std::string::npos;
  if (runs()) {
    void *library = dlopen(library_of(stem).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "CUDA stand-in: %s\n", dlerror());
      return NOT_FOUND;
    }
    auto bind = reinterpret_cast<void (*)(Host *)>(dlsym(library, "cu_bind"));
    bind(&host);
    kernel->run = reinterpret_cast<void (*)(void **)>(dlsym(library, "cu_entry"));
  }
  loaded.push_back(kernel);
  *module = kernel;
  return SUCCESS;
}

EXPORT int cuModuleUnload(void *) { return SUCCESS; }
EXPORT int cuModuleGetFunction(void **function, void *module, const char *) { return *function = module, SUCCESS; }
EXPORT int cuFuncSetAttribute(void *, int attribute, int value) {
  int most = 0;
  cuDeviceGetAttribute(&most, 97, 0);
  return attribute == 8 && value > most ? INVALID_VALUE : SUCCESS;
}

// Refuses what NVIDIA's driver refuses, and what no kernel here asks for.
EXPORT int cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *at, const uint64_t *sizes, const uint64_t *steps, const unsigned *box,
                                  const unsigned *every, int interleave, int swizzle, int, int fill) {
  static const unsigned char bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // by CUtensorMapDataType
  enum { FLUSHED = 10, TF32 = 11, TF32_FLUSHED = 12 };
  if (type < 0 || type > TF32_FLUSHED || type == FLUSHED || type == TF32_FLUSHED || interleave || swizzle < 0 || swizzle > 3 || fill) {
    fprintf(stderr, "CUDA stand-in: a tensor map of type %d, interleave %d, swizzle %d, fill %d is not known\n", type, interleave, swizzle, fill);
    return INVALID_VALUE;
  }
  if (rank < 1 || rank > 5 || uintptr_t(at) % 16) return INVALID_VALUE;
  TensorMap map{};
  map.at = static_cast<const char *>(at);
  map.rank = rank;
  map.bytes = bytes[type];
  map.swizzle = swizzle;
  map.rounded = type == TF32;
  for (unsigned axis = 0; axis < rank; axis++) {
    if (!sizes[axis] || sizes[axis] > uint64_t(1) << 32 || !box[axis] || box[axis] > 256) return INVALID_VALUE;
    if (axis && (steps[axis - 1] % 16 || steps[axis - 1] >= uint64_t(1) << 40)) return INVALID_VALUE;
    if (axis && every[axis] != 1) {
      fprintf(stderr, "CUDA stand-in: a tensor map that leaves elements out is not known\n");
      return INVALID_VALUE;
    }
    map.sizes[axis] = sizes[axis];
    map.steps[axis] = axis ? steps[axis - 1] : map.bytes;
    map.box[axis] = box[axis];
  }
  unsigned width = box[0] * map.bytes;
  if (width % 16 || (swizzle && width > 16u << swizzle)) return INVALID_VALUE;
  if (swizzle && width < 16u << swizzle) {
    fprintf(stderr, "CUDA stand-in: rows of a box that are shorter than the swizzle are not known\n");
    return INVALID_VALUE;
  }
  memcpy(out, &map, sizeof map);
  return SUCCESS;
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *,
                          void **arguments, void **) {
  auto *kernel = static_cast<Kernel *>(function);
  size_t threads = size_t(bx) * by * bz;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || threads == 0 || threads > 1024) return INVALID_VALUE;
  std::lock_guard<std::mutex> guard(lock);
  kernel->launches++;
  if (!runs() || kernel->skipped) return SUCCESS;
  double start = now_ms();
  host.yield = yield_to_scheduler;
  host.init = barrier_init;
  host.arrive = barrier_arrive;
  host.phase = barrier_phase;
  host.await = barrier_await;
  host.copy = copy_piece;
  host.arrive_after_copies = arrive_after_copies;
  host.copy_box = copy_box;
  host.grid = {gx, gy, gz};
  host.block = {bx, by, bz};
  static char *block_memory = static_cast<char *>(aligned_alloc(1024, 256 << 10));
  host.shared = block_memory;
  current_kernel = kernel->run;
  current_arguments = arguments;
  current_name = kernel->name.c_str();
  prepare(threads);
  size_t blocks = size_t(gx) * gy * gz;
  for (size_t number = 0; number < blocks; number++) {
    size_t at = turn(number, blocks);
    host.cube = {unsigned(at % gx), unsigned(at / gx % gy), unsigned(at / gx / gy)};
    if (shared) memset(block_memory, 0xff, shared);
    if (kernel->waits) {
      run_block(threads, host.block);
      continue;
    }
    for (size_t i = 0; i < threads; i++) {
      set_thread(turn(i, threads), host.block);
      kernel->run(arguments);
    }
  }
  double ms = now_ms() - start;
  kernel->ms += ms;
  saved_ms += ms * kernel->saved;
  return SUCCESS;
}
