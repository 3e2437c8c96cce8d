"""Workers that only read a list, and copy its pages."""

from harness import Rows, make, train


class Listed(Rows):
    def __init__(self, count):
        super().__init__(count)
        self.rows = [[float(number), str(number)] for number in range(200_000)]

    def __getitem__(self, index):
        for row in self.rows[index * 100 : index * 100 + 100]:
            row[0] + 1
        return super().__getitem__(index)


train(make(data=Listed(2_000), steps=240, dataloader_num_workers=1))
