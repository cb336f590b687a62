"""Training our GPT with Trainer and with adapters."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny_models import random_tokens
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from transformers_gpt import wrapped

from scale_invariant_attention.huggingface.export import byte_tokenizer


def test_a_trainer_lowers_the_loss(tmp_path):
    model = wrapped("learned tau", torch.float32).train()
    rows = Dataset.from_list([{"input_ids": random_tokens(12).tolist()}] * 16)
    tau = model.gpt.blocks[0].attention.scheme.distance.log_tau.detach().clone()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=4,
            learning_rate=0.01,
            gradient_checkpointing=True,
            report_to=[],
            save_strategy="steps",
            save_steps=4,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(byte_tokenizer(), mlm=False),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.1
    assert not torch.equal(model.gpt.blocks[0].attention.scheme.distance.log_tau, tau)
    again = type(model).from_pretrained(tmp_path / "checkpoint-4")
    assert all(
        torch.equal(weight, again.get_parameter(name)) for name, weight in model.named_parameters()
    )


@pytest.mark.parametrize("targets", [["query", "value", "up"], ["query", "head"]])
def test_an_adapter_lowers_the_loss_and_merges(targets):
    model, tokens = wrapped("rope", torch.float32), random_tokens(4, 12)
    adapted = get_peft_model(
        model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
    ).train()
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=0.02)
    losses = []
    for _ in range(5):
        loss = adapted(input_ids=tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    adapted.eval()
    expected = adapted(input_ids=tokens).logits
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-4, rtol=1e-4)
