"""``gpu``: all that is measured on a GPU, in parts that go on where they were cut off.

=============== =====================================================================================
``parts``       which parts there are, in which order, with which sizes: data alone
``command``     runs them within a budget, shows their tables, and writes them to one file
``result_file`` that file
``worker``      the process in which parts run one after the other, started anew where one has failed
``made_up``     data of the shapes of real ones: no part needs a file or a network
=============== =====================================================================================

The other modules measure: ``machine``, ``agreement`` (of CPU and GPU, and of a run with itself), ``training``,
``nodes`` (several nodes on one GPU, in one process and on Ray) and ``fusion``. A part is a function of a device, a
scratch folder and its sizes that returns :class:`Found`.
"""
