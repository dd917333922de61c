//! What every platform is built from: the campaign of a replica over the platform's two stores, the
//! form in which exposures are stored, and manifests read from a folder. A platform is a crate
//! beside this one, and needs no other platform's code.

pub mod campaign;
pub mod desired_publisher;
pub mod disk_io;
pub mod exposure_record;
pub mod file_watcher;
pub mod last_good_file;
pub mod manifest_watcher;
pub mod removal_grace;

#[cfg(test)]
mod last_good_file_tests;
#[cfg(test)]
mod manifest_watcher_tests;
#[cfg(test)]
mod test_folder;
