"""Train the interpreter: ``python -m congruence.tasks.pit_training --output FILE.safetensors``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from congruence.tasks.pit_training.training import TrainingSettings, train_interpreter


def main() -> None:
    """Train, and write the weights."""
    defaults = TrainingSettings()
    parser = argparse.ArgumentParser(prog="python -m congruence.tasks.pit_training", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("weights.safetensors"), help="where the weights go")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="training steps of 512 fresh histograms")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 repeats exactly")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    started = time.process_time()
    settings = TrainingSettings(steps=arguments.steps, seed=arguments.seed)
    network = train_interpreter(settings)
    seconds = time.process_time() - started
    parameters = {name: value.numpy().astype(np.float32) for name, value in network.state_dict().items()}
    save_file(parameters, arguments.output, metadata={"steps": str(arguments.steps), "seed": str(arguments.seed)})
    print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes after {seconds:.0f} s")


if __name__ == "__main__":
    main()
