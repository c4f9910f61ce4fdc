mod chat_template;
mod checkpoint;
mod fetch;
mod gguf;
mod inspect;
mod tiny;
