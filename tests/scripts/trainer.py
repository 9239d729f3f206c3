"""transformers' Trainer on a tiny language model; prints what it logs and the weights it ends with."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback


class Numbers(Dataset):
    """Sequences that count upwards."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) + place) % 32
        return {"input_ids": tokens, "labels": tokens}


class Print(TrainerCallback):
    """Prints the logged losses, without the times, which differ from run to run."""

    def on_log(self, args, state, control, logs=None, **kwargs):  # type: ignore[no-untyped-def]
        print(
            state.global_step, logs.get("loss"), logs.get("grad_norm"), logs.get("learning_rate"), logs.get("eval_loss")
        )


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=12,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        data = Numbers()
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[Print()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(sum(parameter.double().abs().sum().item() for parameter in model.parameters()))


if __name__ == "__main__":
    main()
