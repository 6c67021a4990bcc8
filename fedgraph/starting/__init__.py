"""Entry points: experiments, predictions of a finished run, and simulation of any Flower app in this process.

The functions that users call are exported by the package itself::

    import fedgraph

    fedgraph.run("sfl/digits.toml")                                                # running
    fedgraph.predict("runs/f3-digits-20260101-120000")                             # predicting
    fedgraph.simulate("my-flower-app", num_nodes=10, run_config={"lr": 0.1})       # simulate
"""
