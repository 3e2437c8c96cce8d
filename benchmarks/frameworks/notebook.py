from pathlib import Path

import nbclient
import nbformat

cells = [
    Path("plain.py").read_text().partition("\noutputs")[0],
    "outputs" + Path("plain.py").read_text().partition("\noutputs")[2],
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=100).execute()
print("".join(output.text for output in notebook.cells[-1].outputs if output.name == "stdout"), end="")
