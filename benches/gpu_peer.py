"""What PyTorch reaches on a device with models of the same shape as ours: the figures of `probe bench`, by the same definitions.

    python benches/gpu_peer.py qwen3-8b.json --device cuda:0 --rows 1,8,64 --train 4 --grpo 8 --peak-tflops 989 --json peer.json
    python benches/gpu_peer.py qwen3-8b.json --device cuda:0 --compiled           # StaticCache and torch.compile, which takes minutes
    python benches/gpu_peer.py tiny.json --device cpu --prompt 32 --new 8 --rows 1,2 --rounds 1 --train 2 --grpo 2

Takes a config.json and makes the model on the device, with random weights in bf16 (--dtype). Needs torch and transformers, peft for
--train and --grpo. Every figure is a call that is not counted, then --rounds of them, each waited for (torch.cuda.synchronize): the
median, and the smallest and largest. Lines have the form and names of `probe bench`, so that they can be put side by side:
  prefill P           one row of P tokens and the logits of the last
  decode R x N        a prompt of 32 tokens in R rows, then N greedy tokens over transformers' DynamicCache, eager, sdpa; N tokens
                      of every row are counted, the prefill's time is too
  train R x P         forward, backward, clipping, AdamW (fused on a GPU) of R rows of P tokens: LoRA of rank --lora on all seven
                      projections, the rest frozen; without gradient checkpointing, and with it where memory does not suffice
  grpo R x N          R rollouts of N tokens after a prompt of 32, drawn at temperature 0.5 with the factors merged; then three inner
                      epochs as our default recipe has them: forward, clipped loss, backward, clipping, AdamW. Only the rollouts' N
                      tokens are counted
PEFT's factors and AdamW's moments are in --dtype, which is faster than in f32; ours are f32. Our rollouts also think latent steps,
which are not counted.
Utilisation is tokens/s times operations a token over --peak-tflops. Operations of a forward: two for each weight of the blocks and of the
head (in prefill, where one position is unembedded, the blocks alone), and attention's 4 x keys x width of all heads x layers over half of
the positions. Backward through frozen matrices is one more forward. Gradient checkpointing's second forward is not counted.

A figure that fails is said and left out. --json is written anew after each figure.
"""

import argparse
import gc
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import transformers

BEFORE = 32
INNER_EPOCHS, TEMPERATURE, CLIP = 3, 0.5, 0.2
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def block_weights(c):
    attention = 2 * c.head_dim * (c.num_attention_heads + c.num_key_value_heads)
    return c.hidden_size * (attention + 3 * c.intermediate_size) * c.num_hidden_layers


def token_weights(c):
    return block_weights(c) + c.vocab_size * c.hidden_size


def attention(c, keys):
    return 4 * keys * c.num_attention_heads * c.head_dim * c.num_hidden_layers


class Peer:
    def __init__(self, a):
        self.a, self.cuda = a, a.device.startswith("cuda")
        with open(a.config) as f:
            self.config = transformers.Qwen3Config(**json.load(f))
        self.dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[a.dtype]
        self.figures = []
        self.model = None

    def load(self):
        """The model anew, without what was put into the last one."""
        self.model = None
        self.free()
        torch.manual_seed(0)
        with torch.device(self.a.device):
            model = transformers.AutoModelForCausalLM.from_config(self.config, dtype=self.dtype, attn_implementation="sdpa")
        self.model = model.eval()

    def free(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def ids(self, rows, length):
        """The same made-up tokens as `probe bench`."""
        flat = torch.arange(rows * length) * 7919 % self.config.vocab_size
        return flat.view(rows, length).to(self.a.device)

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def peak_gb(self):
        if self.cuda:
            return torch.cuda.max_memory_allocated() / 1e9
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    def measure(self, name, tokens, flops, rounds, work):
        """A line, and a figure in the JSON; what fails is a line too. Whether it went well."""
        self.free()
        try:
            work()
            rates = []
            for _ in range(rounds):
                self.wait()
                start = time.perf_counter()
                work()
                self.wait()
                rates.append(tokens / (time.perf_counter() - start))
        except Exception as error:
            self.failed(name, error)
            return False
        median, peak = statistics.median(rates), self.peak_gb()
        figure = {"name": name, "tokens_per_s": median, "rounds": rates, "peak_GB": peak}
        share = ""
        if self.a.peak_tflops:
            figure["utilisation"] = median * flops / (self.a.peak_tflops * 1e12)
            share = f"  utilisation {100 * figure['utilisation']:.1f} %"
        spread = f"({min(rates):.1f} to {max(rates):.1f}, n = {rounds})"
        print(f"{name:<24} {median:>10.1f} tokens/s  {spread}{share}  peak memory {peak:.2f} GB", flush=True)
        self.figures.append(figure)
        self.save()
        return True

    def failed(self, name, error):
        why = (str(error).splitlines() or [""])[0]
        print(f"{name:<24} failed: {type(error).__name__}: {why[:150]}", flush=True)

    def save(self):
        if not self.a.json:
            return
        about = {"device": self.a.device, "torch": torch.__version__, "transformers": transformers.__version__}
        if self.cuda:
            about["gpu"] = torch.cuda.get_device_name(self.a.device)
        with open(self.a.json, "w") as f:
            json.dump({"about": about, "arguments": vars(self.a), "config": self.config.to_dict(), "figures": self.figures}, f, indent=1)

    def prefill(self, suffix=""):
        n, c = self.a.prompt, self.config
        ids = self.ids(1, n)

        @torch.inference_mode()
        def work():
            self.model(ids, use_cache=True, logits_to_keep=1).logits.sum().item()

        self.measure(f"prefill {n}{suffix}", n, 2 * block_weights(c) + attention(c, n // 2), self.a.rounds, work)

    def flops_of_decoding(self):
        return 2 * token_weights(self.config) + attention(self.config, BEFORE + self.a.new // 2)

    @torch.inference_mode()
    def decode(self, prompts, new, drawn=False):
        """The tokens that follow, one at a time over a cache."""
        tokens, cache, out = prompts, None, []
        for _ in range(new):
            said = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logits, cache = said.logits[:, -1], said.past_key_values
            if drawn:
                tokens = torch.multinomial(F.softmax(logits.float() / TEMPERATURE, -1), 1)
            else:
                tokens = logits.argmax(-1, keepdim=True)
            out.append(tokens)
        return torch.cat(out, 1)

    def decoding(self, rows):
        prompts, new = self.ids(rows, BEFORE), self.a.new
        self.measure(f"decode {rows} x {new} tokens", rows * new, self.flops_of_decoding(), self.a.rounds, lambda: self.decode(prompts, new))

    def decoding_compiled(self, rows):
        """transformers compiles the step of a StaticCache by itself, on a GPU."""
        prompts, new = self.ids(rows, BEFORE), self.a.new
        torch._dynamo.reset()

        def work():
            out = self.model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                cache_implementation="static", eos_token_id=None, pad_token_id=0,
            )
            assert out.shape[1] == BEFORE + new, out.shape

        work()  # What is compiled at the second call is not counted either.
        self.measure(f"decode {rows} x {new} tokens, compiled", rows * new, self.flops_of_decoding(), self.a.rounds, work)

    def with_lora(self, checkpointed):
        import peft

        self.load()
        config = peft.LoraConfig(r=self.a.lora, lora_alpha=2 * self.a.lora, lora_dropout=0.0, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
        self.model = peft.get_peft_model(self.model, config, autocast_adapter_dtype=False)
        if checkpointed:
            self.model.enable_input_require_grads()
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        learnt = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learnt, lr=1e-4, weight_decay=0.01, fused=self.cuda)

        def step(loss):
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def trained(self, name, tokens, flops, rounds, work_of):
        """Without gradient checkpointing, and where that fails with it. `work_of` makes the work of a step."""
        for suffix, checkpointed in (("", False), (", checkpointed", True)):
            work = None  # The last one holds its model.
            try:
                work = work_of(self.with_lora(checkpointed))
            except Exception as error:
                self.failed(name + suffix, error)
                return
            if self.measure(name + suffix, tokens, flops, rounds, work):
                return

    def training(self, rows, suffix=""):
        n, c = self.a.prompt, self.config
        ids = self.ids(rows, n)

        def work_of(step):
            self.model.train()
            forward = torch.compile(self.model) if suffix else self.model
            return lambda: step(forward(input_ids=ids, labels=ids, use_cache=False).loss)

        flops = 2 * (2 * token_weights(c) + attention(c, n // 2))
        self.trained(f"train {rows} x {n}, {self.a.dtype}{suffix}", rows * n, flops, self.a.train_rounds, work_of)

    def policy_step(self, rollouts):
        new, c = self.a.grpo_new, self.config
        prompts = self.ids(1, BEFORE).expand(rollouts, -1)
        advantages = torch.tensor([1.0 if i % 2 == 0 else -1.0 for i in range(rollouts)], device=self.a.device)[:, None]

        def of_tokens(whole, said):
            logits = self.model(input_ids=whole[:, :-1], use_cache=False, logits_to_keep=new).logits
            return -F.cross_entropy(logits.float().flatten(0, 1) / TEMPERATURE, said.flatten(), reduction="none").view(rollouts, new)

        def work_of(step):
            def work():
                self.model.eval()
                self.model.merge_adapter()
                said = self.decode(prompts, new, drawn=True).clone()
                self.model.unmerge_adapter()
                self.model.train()
                whole, old = torch.cat([prompts, said], 1), None
                for _ in range(INNER_EPOCHS):
                    chosen = of_tokens(whole, said)
                    old = chosen.detach() if old is None else old
                    ratio = (chosen - old).exp()
                    step(-torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean())

            return work

        flops = (1 + 2 * INNER_EPOCHS) * (2 * token_weights(c) + attention(c, BEFORE + new // 2))
        self.trained(f"grpo {rollouts} x {new}, {self.a.dtype}", rollouts * new, flops, self.a.grpo_rounds, work_of)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", help="config.json of a Qwen3 model")
    p.add_argument("--device", default="cuda:0")
    p.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--rows", default="1,8", help="rows that are decoded together; '' for no prefill and no decoding")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--train", type=int, default=0, metavar="ROWS")
    p.add_argument("--train-rounds", type=int, default=5)
    p.add_argument("--grpo", type=int, default=0, metavar="ROLLOUTS")
    p.add_argument("--grpo-new", type=int, default=64)
    p.add_argument("--grpo-rounds", type=int, default=2)
    p.add_argument("--lora", type=int, default=32, metavar="RANK")
    p.add_argument("--compiled", action="store_true", help="the same compiled: decoding over a StaticCache, and training")
    p.add_argument("--peak-tflops", type=float)
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    rows = [int(n) for n in a.rows.split(",") if n]
    peer = Peer(a)
    start = time.perf_counter()
    peer.load()
    peer.wait()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{a.config}: {token_weights(peer.config) / 1e6:.0f} M parameters, {a.device}, {a.dtype}, {versions}; made in {time.perf_counter() - start:.1f} s", flush=True)
    if rows and not a.compiled:
        peer.prefill()
    for n in rows:
        (peer.decoding_compiled if a.compiled else peer.decoding)(n)
    if a.train:
        peer.training(a.train, ", compiled" if a.compiled else "")
    if a.grpo and not a.compiled:
        peer.policy_step(a.grpo)
    if not peer.figures:
        sys.exit("gpu_peer.py: no figure could be measured")


if __name__ == "__main__":
    main()
