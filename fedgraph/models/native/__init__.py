"""C++ for float32 on a CPU: every source, compiled on the node that trains, and what loads it.

Sources are modules by themselves: each is one text.
"""
