"""Extends the context of a small Llama: trains it with RoPE, converts it, and fine-tunes it.

    python examples/longer_context.py            # a few minutes on a CPU; nothing is downloaded

For your own model replace `small_llama` by from_pretrained(...), and the standard library by a corpus
in the model's tokens: docs/huggingface.md shows how to make one.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, logging

from scale_invariant_attention import huggingface
from scale_invariant_attention.data import spread_windows, standard_library

LENGTH = 128  # training length


def small_llama() -> PreTrainedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "max_position_embeddings": LENGTH}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=256, **size, **heads))


def train(model: PreTrainedModel, steps: int, rate: float, folder: Path) -> PreTrainedModel:
    recipe = huggingface.PretrainingRecipe(steps * 16 * LENGTH, LENGTH, 16, learning_rate=rate)
    text = standard_library("train")
    return huggingface.continue_pretraining(model, text, folder, recipe, use_cpu=True)


@torch.no_grad()
def show_losses(name: str, model: PreTrainedModel) -> None:
    shown = []
    for length in (LENGTH, 4 * LENGTH, 16 * LENGTH):
        text = spread_windows(standard_library("validation"), length, 2**14 // length)
        losses = [model(rows, labels=rows).loss.item() for rows in text.split(4096 // length)]
        shown.append(f"{sum(losses) / len(losses):.3f} at {length:,}")
    print(f"{name}: loss {', '.join(shown)}", flush=True)


def main(steps: int, output: Path) -> None:
    logging.disable_progress_bar()
    model = train(small_llama(), steps, 3e-3, output / "rope")
    show_losses("RoPE", model)
    # A Llama does not normalise its scores: the transform needs their spread, measured with p-RoPE.
    sample = spread_windows(standard_library("train"), LENGTH, 32)
    measured = huggingface.measure_scores(huggingface.convert(model, "p-rope"), [sample])
    model = huggingface.convert(model, tau=10.0, calibration=measured.without_mean)
    model = train(model, max(1, steps // 4), 3e-4, output / "scale-invariant")
    show_losses("scale-invariant, fine-tuned for a quarter as long", model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="steps of the first training")
    main(parser.parse_args().steps, Path("runs/longer-context"))
