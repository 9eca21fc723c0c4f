//! The frames of a stream, from either kind of generator.

use linerate::traffic::{Generator, TemplateFrames};

/// Frames of one queue's share of a stream.
#[derive(Clone)]
pub enum Source {
    /// Flows with sequence numbers, or copies of a captured frame.
    Flows(Generator),
    /// Frames of a template.
    Template(Box<TemplateFrames>),
}

impl Source {
    /// Returns the length of the next frame in bytes, without CRC.
    pub fn next_len(&self) -> usize {
        match self {
            Source::Flows(generator) => generator.frame_len(),
            Source::Template(frames) => frames.next_len(),
        }
    }

    /// Returns the length of the longest frame in bytes, without CRC.
    pub fn longest(&self) -> usize {
        match self {
            Source::Flows(generator) => generator.frame_len(),
            Source::Template(frames) => frames.longest(),
        }
    }

    /// Returns the mean length of the frames in bytes, without CRC.
    pub fn mean_len(&self) -> f64 {
        match self {
            Source::Flows(generator) => generator.frame_len() as f64,
            Source::Template(frames) => frames.mean_len(),
        }
    }

    /// Returns whether the frames have sequence numbers.
    pub fn is_stamped(&self) -> bool {
        match self {
            Source::Flows(generator) => generator.is_stamped(),
            Source::Template(frames) => frames.is_stamped(),
        }
    }

    /// Writes the next frame to `bytes`, which must have its length.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        match self {
            Source::Flows(generator) => generator.fill(bytes),
            Source::Template(frames) => frames.fill(bytes),
        }
    }
}

impl From<Generator> for Source {
    fn from(generator: Generator) -> Source {
        Source::Flows(generator)
    }
}

impl From<TemplateFrames> for Source {
    fn from(frames: TemplateFrames) -> Source {
        Source::Template(Box::new(frames))
    }
}
