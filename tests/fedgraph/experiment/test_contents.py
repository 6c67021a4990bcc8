"""Files that an experiment names are told apart by their content."""

from fedgraph.experiment import file_contents, parse_experiment

HERE = {"experiment": {"method": "sfl"}, "model": {"name": "mlp"}, "graph": {"source": "complete"}}


def test_own_files_and_folders_count_and_those_of_the_data_folder_do_not(tmp_path):
    (tmp_path / "scans" / "a").mkdir(parents=True)
    image, rows = tmp_path / "scans" / "a" / "1.png", tmp_path / "rows.csv"
    image.write_bytes(b"1")
    rows.write_text("x,y\n1,2\n")
    table = {"set": "table", "label": "y", "path": str(rows)}
    images = {"set": "images", "classes": ["a", "b"], "size": 4, "path": str(tmp_path / "scans")}

    def contents(data):
        return file_contents(parse_experiment({**HERE, "data": data}))

    before, folder = contents(table), contents(images)
    assert list(before) == list(folder) == ["data.path"]
    assert contents(table) == before
    rows.write_text("x,y\n1,3\n")
    assert contents(table) != before
    image.write_bytes(b"12")
    assert contents(images) != folder
    assert contents({**table, "path": "of-the-data-folder.csv"}) == contents({"set": "digits"}) == {}
