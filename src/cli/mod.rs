pub mod fetch;
pub mod inspect;
