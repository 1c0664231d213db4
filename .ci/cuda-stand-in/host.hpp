// What the driver's stand-in and a kernel compiled for the CPU share. No header of the system: CubeCL's sources define
// `uint64_t` and others themselves.
#pragma once

struct Dim {
  unsigned x, y, z;
};

// What a thread waits for: the threads of its warp, or of its block.
enum class Wait { None, Warp, Block };

struct Host {
  Dim thread, cube, block, grid;
  unsigned long lane;  // index of the thread in its block
  char *shared;
  void (*yield)(Wait);
  // Of each warp: its exchanges so far, and the threads that took part in the last one.
  unsigned turn[32], active[32];
  // Where a thread leaves a value for others of its warp: two places in turn, because one thread may be at the next
  // exchange while another still reads the last.
  unsigned long long values[1024][2][4];
};
