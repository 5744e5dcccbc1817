"""Scripts of real libraries under `amanda run`: what they print, their status and their files are those of plain Python."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TRAINER = """
    import dataclasses, hashlib, sys
    import peft, torch, transformers

    @dataclasses.dataclass
    class Model:
        width: int = dataclasses.field(default=16)

    class Tokens(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = torch.randint(0, 99, (8, 7))
        def __len__(self):
            return len(self.rows)
        def __getitem__(self, i):
            return {"input_ids": self.rows[i], "labels": self.rows[i]}

    class Told(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            print({name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs})

    if __name__ == "__main__":
        parser = transformers.HfArgumentParser((Model, transformers.TrainingArguments))
        model, arguments = parser.parse_args_into_dataclasses()
        transformers.set_seed(0)
        config = transformers.LlamaConfig(hidden_size=model.width, num_hidden_layers=2, num_attention_heads=2,
                                          intermediate_size=32, vocab_size=99, attention_dropout=0.1)
        lora = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
        trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Told])
        trainer.pop_callback(transformers.PrinterCallback)  # it prints times
        trainer.train()
        for name, value in [*model.named_parameters(), *peft.load_peft_weights("out/checkpoint-2", device="cpu").items()]:
            print(name, hashlib.sha256(value.detach().numpy().tobytes()).hexdigest())
        sys.exit(3)
"""
OPTIONS = (
    "--width 16 --output_dir out --max_steps 2 --save_steps 2 --logging_steps 1 --per_device_train_batch_size 4 --use_cpu "
    "--report_to none --disable_tqdm True --dataloader_num_workers 1"
)

PICKLES = """
    import multiprocessing, pickle, sys
    import dill, torch
    from datasets.fingerprint import Hasher

    SCALE = 3

    class OfMain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
        def forward(self, x):
            return x * self.scale * SCALE

    def scaled(x):
        return float(OfMain()(torch.tensor(x)))

    if __name__ == "__main__":
        print(Hasher.hash(scaled), Hasher.hash(OfMain), len(dill.dumps(scaled)), dill.loads(dill.dumps(scaled))(1.0))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(scaled, [1.0, 2.0]))
        torch.save(OfMain(), "model.pt")
        with open("function.pickle", "wb") as file:
            pickle.dump([scaled, OfMain], file)
"""

SCRIPTS = {"trainer": (TRAINER, OPTIONS.split(), 3), "pickles": (PICKLES, [], 0)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_and_writes_what_it_does_under_python(tmp_path: Path, name: str) -> None:
    source, arguments, status = SCRIPTS[name]
    started = {}
    for how, command in {"alone": [], "under": ["-m", "amanda", "run", "-t", "profile", "-t", "gradients"]}.items():
        folder = tmp_path / how
        folder.mkdir()
        (folder / "script.py").write_text(textwrap.dedent(source))
        started[how] = subprocess.Popen(
            [sys.executable, *command, "script.py", *arguments],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    alone, observed = (process.communicate() for process in started.values())
    assert [process.returncode for process in started.values()] == [status, status], alone[1] + observed[1]
    assert alone[0]
    printed, marked, _ = observed[0].partition("\n\nprofile\n")
    assert marked
    assert printed.rpartition("\n\n")[0] + "\n" == alone[0]
    written = {
        how: sorted(str(file.relative_to(tmp_path / how)) for file in (tmp_path / how).rglob("*")) for how in started
    }
    assert written["under"] == written["alone"]
    for file in ("function.pickle", "out/checkpoint-2/adapter_model.safetensors"):
        if file in written["alone"]:
            assert (tmp_path / "under" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
