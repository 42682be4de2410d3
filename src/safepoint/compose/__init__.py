"""Agents made of agents: in a sequence, side by side, in a loop, or handing the conversation on to one another."""
