//! The environment in which a process loads a Vulkan driver: the loader and the dynamic linker read it when the process starts.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// The file that a process was started from, whatever has its name by now.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// Says that a process was started with it.
const ENTERED: &str = "CAMPANILE_VULKAN_ENVIRONMENT";

/// Variables of a process that loads `driver`, or the system's.
///
/// # Errors
/// The manifest is not there.
pub fn variables(driver: Option<&Path>) -> anyhow::Result<Vec<(String, String)>> {
    // One compiler cache for all guests would let them see each other's kernels, and writes files.
    let mut variables = vec![("MESA_SHADER_CACHE_DISABLE".to_owned(), "true".to_owned())];
    if let Some(driver) = driver {
        let driver = driver
            .canonicalize()
            .with_context(|| format!("the Vulkan driver manifest {}", driver.display()))?;
        let driver = driver.to_string_lossy().into_owned();
        variables.push(("VK_DRIVER_FILES".to_owned(), driver.clone()));
        variables.push(("VK_ICD_FILENAMES".to_owned(), driver));
    }
    if let Ok(libraries) = env::var("CAMPANILE_VULKAN_LIBRARY_PATH") {
        variables.push(("LD_LIBRARY_PATH".to_owned(), libraries));
    }
    Ok(variables)
}

/// Has this process, which is to load Vulkan itself, the environment that engines have: it executes its program anew with the same
/// arguments, once. Call it before there is anything to lose.
///
/// # Errors
/// The manifest is not there, or the program cannot be executed.
pub fn enter(driver: Option<&Path>) -> anyhow::Result<()> {
    let variables = variables(driver)?;
    if env::var_os(ENTERED).is_some() {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| "campanile".into());
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0(name).args(arguments).envs(variables).env(ENTERED, "1");
    Err(command.exec()).context("starting this program in the environment of the Vulkan driver")
}
