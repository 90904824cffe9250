"""One module per paper: its runs, tables, figures and claims, measured with the instruments of the other rooms."""

if __name__ == "papers":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("papers")
