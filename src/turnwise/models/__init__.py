"""Load and save models; run them on packed batches: attention, layers, output head, critic, memory planning."""
