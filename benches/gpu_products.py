"""What PyTorch's products (cuBLAS) reach on an NVIDIA GPU in bf16, for the matrices of Qwen3-8B's layers, its head and LoRA factors:
microseconds (the median of 20, each waited for) and TFLOP/s, forward and backward; then what a copy on the device moves.

    python benches/gpu_products.py
"""

import torch

torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def bench(f, n=20):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    t = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        t.append(a.elapsed_time(b) * 1e3)
    return sorted(t)[n // 2]


for m in (64, 512, 2048):
    for k, n in ((4096, 4096), (4096, 1024), (4096, 12288), (12288, 4096), (4096, 151936), (4096, 32), (32, 4096)):
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        y = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
        f, b = bench(lambda: x @ w), bench(lambda: y @ w.t())
        print(f"{m} {k} {n}: forward {f:.1f} us {2*m*k*n/f/1e6:.0f} TFLOP/s, backward {b:.1f} us {2*m*k*n/b/1e6:.0f}")
a = torch.empty(4 << 30, device="cuda", dtype=torch.uint8)
b = torch.empty_like(a)
t = bench(lambda: b.copy_(a), 5); print(f"copy {2*a.numel()/t/1e6:.2f} TB/s")
