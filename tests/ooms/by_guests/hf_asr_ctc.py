"""Speech recognition: wav2vec2 with CTC on crowd-sourced clips, padded to the longest of each batch."""
import re
import resource

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC, set_seed

set_seed(0)
torch.set_num_threads(1)
RATE = 16_000


class Clips(Dataset):
    def __init__(self, count, max_seconds=None):
        generator = torch.Generator().manual_seed(3)
        seconds = (0.8 + 1.4 * torch.rand(count, generator=generator)).tolist()
        seconds[count // 3] = 27.5
        self.seconds = [s for s in seconds if max_seconds is None or s <= max_seconds]

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        audio = 0.1 * torch.randn(int(self.seconds[index] * RATE), generator=generator)
        return {"input_values": audio, "labels": torch.randint(4, 32, (12,), generator=generator)}


def collate(rows):
    audio = [row["input_values"] for row in rows]
    lengths = torch.tensor([len(a) for a in audio])
    padded = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
    mask = (torch.arange(padded.shape[1])[None, :] < lengths[:, None]).long()
    return {"input_values": padded, "attention_mask": mask, "labels": torch.stack([row["labels"] for row in rows])}


config = Wav2Vec2Config(
    vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(24,) * 7,
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, apply_spec_augment=False, ctc_zero_infinity=True,
    ctc_loss_reduction="mean",
)
model = Wav2Vec2ForCTC(config)
arguments = TrainingArguments(
    "out/hf_asr_ctc", per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-3, save_strategy="no",
    logging_steps=5, report_to="none", use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Clips(120), data_collator=collate)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 750 * 2**20,) * 2)
trainer.train()
print("done")
