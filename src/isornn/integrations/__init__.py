"""Callbacks for other people's trainers: a critical start, reports and monitors in one line.

A module for each trainer, which needs its package and is imported only when used:

- `isornn.integrations.lightning`: Lightning's Trainer, of ``lightning`` and of ``pytorch_lightning``;
- `isornn.integrations.transformers`: Hugging Face's Trainer;
- `isornn.integrations.stable_baselines3`: RecurrentPPO of sb3-contrib.

In a loop of one's own the functions serve: `isornn.init.critical_`, `isornn.diagnose`, `isornn.diagnosis.Monitor`.
"""
