"""How good an agent is: success with intervals, pass@k."""
