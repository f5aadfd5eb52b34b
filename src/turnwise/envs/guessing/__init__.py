"""Games of questions: a hidden word, an oracle that answers, a turn that costs."""
