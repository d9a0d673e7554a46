"""The scripts: each with what is typed after ``memfit run``.

``{data}`` and ``{models}`` are what ``data.py`` makes, ``{out}`` a folder to write to. A script runs in ``folder`` of
its repository at a pinned commit, or, where it comes with a package, in an empty folder.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORIES = {
    "nanoGPT": ("karpathy/nanoGPT", "3adf61e"),
    "nanochat": ("karpathy/nanochat", "92d63d4"),
    "examples": ("pytorch/examples", "77f55b9"),
    "vision": ("pytorch/vision", "e6f04004f0"),
    "transformers": ("huggingface/transformers", "d56c55bf564"),
    "trl": ("huggingface/trl", "f2cd57710"),
    "peft": ("huggingface/peft", "5d602fdbf"),
    "accelerate": ("huggingface/accelerate", "16cb6eb8"),
    "diffusers": ("huggingface/diffusers", "58eb52c080"),
    "timm": ("huggingface/pytorch-image-models", "aa4b5850"),
    "lightning": ("Lightning-AI/pytorch-lightning", "7f0c3436cd"),
}

PACKAGES = [
    "transformers==5.17.0",
    "accelerate==1.15.0",
    "datasets==5.2.0",
    "peft==0.21.2",
    "trl==1.16.0",
    "diffusers==0.42.1",
    "timm==1.0.30",
    "torchvision",
    "lightning==2.6.6",
    "litgpt==0.5.9",
    "torchtitan==0.2.2",
    "liger-kernel==0.8.5",
    "bitsandbytes==0.50.2",
    "sentence-transformers",
    "torchao==0.18.0",
    "evaluate",
    "scikit-learn",
    "pillow",
    "sentencepiece",
    "soundfile",
    "librosa",
    "tensorboard",
    "jiwer",
    "tyro",
    "boto3",
    "fire",
    "hydra-core",
    "torchdata",
    "tiktoken",
    "rouge_score",
    "sacrebleu",
    "seqeval",
    "nltk",
]


@dataclass(frozen=True, slots=True)
class Script:
    """One row of the table."""

    name: str
    command: str
    """What a user types after ``memfit run``."""
    repository: str = ""
    folder: str = ""
    environment: str = ""
    """NAME=VALUE, by spaces."""
    packages: str = ""
    """What it needs in another version than the rest."""


_HF = "--per_device_train_batch_size 8 --max_steps 5 --do_train --report_to none --output_dir {out} --overwrite_output_dir"
_HF = _HF.replace(" --overwrite_output_dir", "")
_TRL = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_steps 5 --report_to none --output_dir {out}"
_LM = "language-modeling/"
_TITAN = (
    "torchrun --nproc_per_node=8 -m torchtitan.train --model.name llama3 --model.hf_assets_path {models}/llama "
    "--training.dataset c4_test --training.seq_len 2048 --metrics.log_freq 1"
)

SCRIPTS = [
    # Karpathy's
    Script(
        "nanogpt",
        "train.py --compile=False --dataset=tokens --eval_iters=20 --gradient_accumulation_steps=4",
        "nanoGPT",
    ),
    Script("nanogpt_compiled", "train.py --dataset=tokens --eval_iters=20 --gradient_accumulation_steps=4", "nanoGPT"),
    Script("nanogpt_evaluates_first", "train.py --compile=False --dataset=tokens --gradient_accumulation_steps=2", "nanoGPT"),
    Script(
        "nanogpt_ddp",
        "torchrun --standalone --nproc_per_node=8 train.py --compile=False --dataset=tokens --eval_iters=5",
        "nanoGPT",
    ),
    # PyTorch's examples
    Script("mnist", "main.py", "examples", "mnist"),
    Script("mnist_rnn", "main.py --accel", "examples", "mnist_rnn"),
    Script("vae", "main.py", "examples", "vae"),
    Script("dcgan", "main.py --dataset fake --accel --workers 2", "examples", "dcgan"),
    Script("imagenet_resnet50", "main.py --dummy -a resnet50 -b 128 -j 2", "examples", "imagenet"),
    Script(
        "imagenet_spawned",
        "main.py --dummy -a resnet18 -b 256 -j 2 --multiprocessing-distributed --world-size 1 --rank 0 "
        "--dist-url tcp://127.0.0.1:23456",
        "examples",
        "imagenet",
    ),
    Script("siamese", "main.py", "examples", "siamese_network"),
    Script("lstm_words", "main.py --accel", "examples", "word_language_model"),
    Script("transformer_words", "main.py --accel --model Transformer --lr 5", "examples", "word_language_model"),
    Script("forward_forward", "main.py", "examples", "mnist_forward_forward"),
    Script("ddp_example", "torchrun --nproc_per_node=4 example.py", "examples", "distributed/ddp"),
    Script(
        "ddp_tutorial",
        "torchrun --standalone --nproc_per_node=4 multigpu_torchrun.py 5 10",
        "examples",
        "distributed/ddp-tutorial-series",
    ),
    Script("ddp_spawned", "multigpu.py 5 10", "examples", "distributed/ddp-tutorial-series"),
    Script(
        "mingpt_ddp",
        "torchrun --standalone --nproc_per_node=4 main.py data_config.path={data}/texts/plain.txt",
        "examples",
        "distributed/minGPT-ddp/mingpt",
    ),
    Script("fsdp2_example", "torchrun --nproc_per_node=2 example.py", "examples", "distributed/FSDP2"),
    Script(
        "tensor_parallel", "torchrun --nproc_per_node=4 tensor_parallel_example.py", "examples", "distributed/tensor_parallelism"
    ),
    Script(
        "sequence_parallel",
        "torchrun --nproc_per_node=4 sequence_parallel_example.py",
        "examples",
        "distributed/tensor_parallelism",
    ),
    Script("fsdp_tp", "torchrun --nproc_per_node=4 fsdp_tp_example.py", "examples", "distributed/tensor_parallelism"),
    # torchvision's references
    Script(
        "torchvision_classification",
        "train.py --data-path {data}/images --model resnet50 --batch-size 32 --amp --workers 2 --output-dir {out}",
        "vision",
        "references/classification",
    ),
    Script(
        "torchvision_efficientnet",
        "train.py --data-path {data}/images --model efficientnet_v2_s --batch-size 32 --workers 2 "
        "--opt adamw --model-ema --output-dir {out}",
        "vision",
        "references/classification",
    ),
    # transformers' examples
    Script(
        "clm",
        f"run_clm.py --model_name_or_path {{models}}/llama --train_file {{data}}/texts/plain.txt --block_size 512 {_HF} --bf16",
        "transformers",
        "examples/pytorch/language-modeling",
    ),
    Script(
        "clm_no_trainer",
        "accelerate launch --num_processes 1 --mixed_precision bf16 run_clm_no_trainer.py --model_name_or_path "
        "{models}/gpt2 --train_file {data}/texts/plain.txt --block_size 512 --per_device_train_batch_size 8 --max_train_steps 5 "
        "--output_dir {out}",
        "transformers",
        "examples/pytorch/language-modeling",
    ),
    Script(
        "clm_fsdp",
        "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path {models}/llama --train_file "
        f"{{data}}/texts/plain.txt --block_size 512 {_HF} --bf16 --fsdp full_shard",
        "transformers",
        "examples/pytorch/language-modeling",
    ),
    Script(
        "mlm",
        f"run_mlm.py --model_name_or_path {{models}}/bert --train_file {{data}}/texts/plain.txt --max_seq_length 256 {_HF}",
        "transformers",
        "examples/pytorch/language-modeling",
    ),
    Script(
        "classification",
        "run_classification.py --model_name_or_path {models}/bert --train_file {data}/texts/pairs/train.json "
        f"--validation_file {{data}}/texts/pairs/test.json --text_column_names sentence1,sentence2 "
        f"--label_column_name label {_HF} --fp16",
        "transformers",
        "examples/pytorch/text-classification",
    ),
    Script(
        "ner",
        f"run_ner.py --model_name_or_path {{models}}/bert --train_file {{data}}/texts/entities/train.json {_HF}",
        "transformers",
        "examples/pytorch/token-classification",
    ),
    Script(
        "summarization",
        "run_summarization.py --model_name_or_path {models}/t5 --train_file {data}/texts/summaries/train.json "
        f"{_HF} --source_prefix summarize",
        "transformers",
        "examples/pytorch/summarization",
    ),
    Script(
        "translation",
        "run_translation.py --model_name_or_path {models}/t5 --train_file {data}/texts/translations/train.json "
        f"--source_lang en --target_lang ro {_HF} --gradient_checkpointing",
        "transformers",
        "examples/pytorch/translation",
    ),
    Script(
        "image_classification",
        f"run_image_classification.py --model_name_or_path {{models}}/vit --train_dir {{data}}/images/train {_HF} "
        "--ignore_mismatched_sizes --remove_unused_columns False",
        "transformers",
        "examples/pytorch/image-classification",
    ),
    Script(
        "mae",
        f"run_mae.py --dataset_name {{data}}/images/train {_HF} --remove_unused_columns False",
        "transformers",
        "examples/pytorch/image-pretraining",
    ),
    Script(
        "audio_classification",
        "run_audio_classification.py --dataset_name {data}/sounds --model_name_or_path {models}/wav2vec2 "
        f"--audio_column_name audio --label_column_name label --eval_split_name test {_HF} --remove_unused_columns False",
        "transformers",
        "examples/pytorch/audio-classification",
        packages="datasets==3.6.0",
    ),
    # TRL
    Script("trl_sft", f"trl sft --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/chat {_TRL}"),
    Script(
        "trl_sft_lora",
        f"trl sft --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/chat {_TRL} --use_peft "
        "--lora_r 16 --learning_rate 2e-4 --packing",
    ),
    Script(
        "trl_sft_qlora",
        f"trl sft --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/chat {_TRL} --use_peft --load_in_4bit",
    ),
    Script(
        "trl_sft_liger",
        f"trl sft --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/chat {_TRL} --use_liger_kernel",
    ),
    Script(
        "trl_sft_flash",
        f"trl sft --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/chat {_TRL} "
        "--attn_implementation flash_attention_2 --dtype bfloat16 --packing",
    ),
    Script("trl_dpo", f"trl dpo --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/preference {_TRL}"),
    Script("trl_kto", f"trl kto --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/judged {_TRL}"),
    Script("trl_reward", f"trl reward --model_name_or_path {{models}}/reward --dataset_name {{data}}/texts/preference {_TRL}"),
    Script(
        "trl_grpo",
        f"trl grpo --model_name_or_path {{models}}/qwen2 --dataset_name {{data}}/texts/prompts {_TRL} "
        "--reward_funcs think_format_reward --num_generations 4 --max_completion_length 32",
    ),
    Script(
        "trl_sft_ddp",
        f"accelerate launch --num_processes 4 --multi_gpu trl/scripts/sft.py --model_name_or_path {{models}}/qwen2 "
        f"--dataset_name {{data}}/texts/chat {_TRL}",
        "trl",
    ),
    # PEFT
    Script(
        "peft_sft",
        "train.py --model_name_or_path {models}/llama --dataset_name {data}/texts/chat --splits train,test "
        f"--use_peft_lora True --lora_target_modules all-linear {_TRL} --bf16 True",
        "peft",
        "examples/sft",
    ),
    Script(
        "peft_olora",
        "olora_finetuning.py --base_model {models}/llama --data_path {data}/texts/instructions --output_dir {out} "
        "--batch_size 4 --val_set_size 8",
        "peft",
        "examples/olora_finetuning",
    ),
    # accelerate
    Script("accelerate_nlp", "accelerate launch --num_processes 1 --mixed_precision bf16 nlp_example.py", "accelerate", "examples"),
    Script(
        "accelerate_ddp_hook",
        "accelerate launch --num_processes 4 --multi_gpu by_feature/ddp_comm_hook.py --ddp_comm_hook bf16",
        "accelerate",
        "examples",
    ),
    Script(
        "accelerate_accumulation",
        "accelerate launch --num_processes 1 by_feature/gradient_accumulation.py --gradient_accumulation_steps 4",
        "accelerate",
        "examples",
    ),
    Script(
        "accelerate_local_sgd", "accelerate launch --num_processes 4 --multi_gpu by_feature/local_sgd.py", "accelerate", "examples"
    ),
    Script(
        "accelerate_fsdp",
        "accelerate launch --num_processes 4 --use_fsdp --fsdp_version 1 --fsdp_auto_wrap_policy "
        "TRANSFORMER_BASED_WRAP --mixed_precision bf16 nlp_example.py",
        "accelerate",
        "examples",
    ),
    Script(
        "accelerate_nd",
        "accelerate launch --num_processes 8 torch_native_parallelism/nd_parallel.py --dp-shard-size 8 --model-name {models}/llama",
        "accelerate",
        "examples",
    ),
    # diffusers
    Script(
        "diffusers_unconditional",
        "accelerate launch --num_processes 1 train_unconditional.py --train_data_dir {data}/images/train "
        "--resolution 64 --train_batch_size 16 --num_epochs 1 --output_dir {out} --mixed_precision no",
        "diffusers",
        "examples/unconditional_image_generation",
    ),
    # timm
    Script(
        "timm_resnet50", "train.py --data-dir {data}/images --model resnet50 --num-classes 10 -b 32 -j 2 --output {out}", "timm"
    ),
    Script(
        "timm_vit_amp",
        "train.py --data-dir {data}/images --model vit_small_patch16_224 --num-classes 10 -b 64 -j 2 --amp "
        "--amp-dtype bfloat16 --opt adamw --mixup 0.2 --output {out}",
        "timm",
    ),
    Script(
        "timm_ddp",
        "torchrun --nproc_per_node=4 train.py --data-dir {data}/images --model convnext_tiny --num-classes 10 -b 16 -j 2 "
        "--opt adamw --model-ema --output {out}",
        "timm",
    ),
    # Lightning
    Script("lightning_autoencoder", "basics/autoencoder.py --trainer.max_steps 5", "lightning", "examples/pytorch"),
    Script("lightning_transformer", "basics/transformer.py", "lightning", "examples/pytorch"),
    Script("fabric_language_model", "language_model/train.py", "lightning", "examples/fabric"),
    Script("fabric_classifier", "fabric run image_classifier/train_fabric.py --epochs 1", "lightning", "examples/fabric"),
    Script("fabric_tensor_parallel", "torchrun --nproc_per_node=4 tensor_parallel/train.py", "lightning", "examples/fabric"),
    # litgpt
    Script(
        "litgpt_pretrain",
        "litgpt pretrain pythia-160m --data TextFiles --data.train_data_path {data}/texts --train.max_tokens 40960 "
        "--train.micro_batch_size 4 --train.global_batch_size 8 --tokenizer_dir {models}/llama --out_dir {out}",
    ),
    # torchtitan 0.2.2
    Script("titan_fsdp", f"{_TITAN} --model.flavor debugmodel"),
    Script("titan_8b", f"{_TITAN} --model.flavor 8B"),
    Script("titan_8b_compiled", f"{_TITAN} --model.flavor 8B --compile.enable"),
    Script("titan_tp", f"{_TITAN} --model.flavor debugmodel --parallelism.tensor_parallel_degree 2"),
    Script("titan_cp", f"{_TITAN} --model.flavor debugmodel --parallelism.context_parallel_degree 2"),
]
