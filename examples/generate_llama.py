"""Generate bytes with a Llama model from transformers: random weights, a real key-value cache.

    python examples/generate_llama.py
    python examples/generate_llama.py --device cuda --width 2048 --layers 16 --prompt "Once upon a time"

Prints the tokens, which are the same in every run, and on standard error how many a second.
"""

import argparse
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BYTES = 256  # the vocabulary: every value a byte can take


def make_model(width: int, layers: int) -> LlamaForCausalLM:
    """A Llama of the given size with heads of 64, four of them to a key-value head."""
    heads = width // 64
    config = LlamaConfig(
        vocab_size=BYTES,
        hidden_size=width,
        intermediate_size=8 * width // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=4096,
        initializer_range=0.1,  # wide enough that an untrained model does not repeat itself
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate bytes with a randomly initialised Llama.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", default="The ridge point of a machine is FLOP/s times bits over bandwidth.")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = make_model(args.width, args.layers).to(args.device)
    prompt = torch.tensor([list(args.prompt.encode())], device=args.device)

    begin = time.perf_counter()
    output = model.generate(prompt, max_new_tokens=args.tokens, do_sample=False, use_cache=True)
    tokens = output[0, prompt.shape[1] :].tolist()
    seconds = time.perf_counter() - begin

    print(*tokens)
    print(f"{len(tokens) / seconds:.1f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
