"""Training and evaluation of the reference pair; see scripts/train_reference_pair.py."""
