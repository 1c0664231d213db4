// What the driver's stand-in and a kernel compiled for the CPU share. No header of the system: CubeCL's sources define
// `uint64_t` and others themselves.
#pragma once

struct Dim {
  unsigned x, y, z;
};

// What a thread waits for: the threads of its warp, of its block, or the end of a phase of a barrier in shared memory.
enum class Wait { None, Warp, Block, Phase };

// What `CUtensorMap` holds here, in the 128 bytes that it has: a tensor, its innermost axis first, and the box that one copy takes.
struct TensorMap {
  const char *at;
  unsigned long sizes[5], steps[5];  // steps in bytes
  unsigned short box[5];
  unsigned char rank, bytes, swizzle, rounded;
};
static_assert(sizeof(TensorMap) <= 128, "a tensor map is opaque and has 128 bytes");

struct Host {
  Dim thread, cube, block, grid;
  unsigned long lane;  // index of the thread in its block
  char *shared;
  void (*yield)(Wait);
  // Barriers in shared memory are known by their address, phases by their number.
  void (*init)(void *barrier, unsigned arrivals);
  unsigned long (*arrive)(void *barrier, unsigned arrivals, unsigned bytes);
  unsigned long (*phase)(void *barrier);
  void (*await)(void *barrier, unsigned long phase);
  void (*copy)(void *to, const void *from, unsigned bytes, unsigned from_bytes);
  void (*arrive_after_copies)(void *barrier);
  void (*copy_box)(void *to, const void *map, const int *at, void *barrier);
  // Of each warp: its exchanges so far, and the threads that took part in the last one.
  unsigned turn[32], active[32];
  // Where a thread leaves a value for others of its warp: two places in turn, because one thread may be at the next
  // exchange while another still reads the last.
  unsigned long long values[1024][2][4];
};
