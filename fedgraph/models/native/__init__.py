"""C++ for float32 on a CPU: the sources, compiled on the node that trains, and their loader.

Each source is a module by itself that contains one text.
"""
