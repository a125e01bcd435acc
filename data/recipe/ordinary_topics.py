"""Small talk: every topic is a row of exchanges, every exchange offers pairs of turns.

In a pair, what the first speaker says stands before the bar and the answer behind it.
"""

from __future__ import annotations

TOPICS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        (
            "Good {daytime}. Can I help you? | Yes, please. I would like {n_food}.",
            "Hello! What would you like? | I need {n_food} and {portion}.",
            "Who is next? | It is my turn. {N_food}, please.",
        ),
        (
            "Here you are. Anything else? | No, thank you. How much is it?",
            "Do you need a bag? | No, I have a basket. What does it cost?",
            "Is that all? | Yes, that is all. How much do I have to pay?",
        ),
        (
            "That is {price} coins, please. | Here you are. Goodbye!",
            "It costs {price} coins. | I have only {less} coins. Can I pay the rest tomorrow?",
            "{Price} coins. | That is expensive! Last week it was only {less}.",
        ),
        ("Thank you, and have a nice day. | The same to you!", "See you on {weekday}. | See you!"),
    ),
    (
        (
            "Have you seen my {thing}? | Which one? The {colour} one?",
            "Where is my {thing}? I cannot find it. | I do not know. When did you use it last?",
            "My {thing} is gone! | Do not worry. Where did you see it last?",
        ),
        (
            "I had it in the {room} this morning. | Did you look {spot}?",
            "I think that I left it at the {place}. | No, you had it here yesterday. Look {spot}!",
            "It was {spot} on {weekday}. | And you are sure that nobody took it?",
        ),
        (
            "Yes, but it was not there. | Look, there it is! It is {spot2}.",
            "I am not sure. | Then ask {third}. Maybe {third} has it.",
            "Wait, I will look again. | I will help you.",
        ),
        (
            "Thank you! You are a great help. | You are welcome.",
            "What would I do without you? | You would lose everything.",
        ),
    ),
    (
        (
            "What are you doing on {weekday}? | Nothing special. Why?",
            "Do you have time on {weekday}? | Only in the {daytime}. Before that I must {chore}.",
            "Are you busy on {weekday}? | No, I am free all day.",
        ),
        (
            "Let us go to the {place}! | I would love to. When shall we meet?",
            "Will you come to the {place} with me? | Sure, but not before {hour} o'clock.",
            "I want to {hobby}. Will you join me? | Yes, if it does not rain.",
        ),
        (
            "We can meet at half past {hour} at the {place2}. | Good. Should I bring something?",
            "I will wait for you at the {place2}. | Can {third} come too?",
            "Then come to my house at {hour}. | I will be there. Do you need anything?",
        ),
        (
            "Yes, if you like. | Then see you on {weekday}.",
            "Yes, why not? And some {food.pl} would be nice. | All right, I will not forget.",
        ),
    ),
    (
        (
            "You look {bad}. What is wrong? | I have lost my {thing}.",
            "Why are you so {bad} today? | I had to {chore} all day.",
            "Are you all right? | No. {third} did not call me.",
            "What is the matter? | My {thing} is broken, and it was not even mine.",
        ),
        (
            "Oh, I am sorry to hear that. | It is not so bad, but I am tired.",
            "Is that so bad? | Yes, it is! What should I do?",
            "That happens to everyone. | I know, but it makes me {bad}.",
        ),
        (
            "Sit down, and I will make some {drink}. | You are very kind.",
            "Tell {third} about it. | No, I would rather not.",
            "I can help you with it. | Really? That would be nice.",
        ),
        (
            "Tomorrow we will {hobby} together. | I am looking forward to it!",
            "Tomorrow everything will look better. | I hope so.",
        ),
    ),
    (
        (
            "Hello, this is {p}. Is {third} at home? | No, I am afraid not. This is {q}.",
            "Hi, it is {p}. May I speak to {third}? | Sorry, {third} is at the {place}.",
        ),
        (
            "When will {third} be back? | At about {hour}, I think.",
            "Oh. Could I leave a message? | Yes, wait, I need a pen. All right, go on.",
        ),
        (
            "Please say that we meet at the {place2} on {weekday}. | I will. What is your number?",
            "Tell {third} that I have found the {thing}. | Where was it? And what is your number?",
        ),
        (
            "It is {digits}. | Let me say it again: {digits}. Is that right?",
            "I have a new one: {digits}. | {digits}. I have written it down.",
        ),
        ("Yes. Thank you, and goodbye! | Goodbye!", "That is right. See you soon! | Bye!"),
    ),
    (
        (
            "Which {thing} is better, the {colour} one or the {colour2} one? | The {colour} one.",
            "Look at this {thing}! Should I buy it? | Hmm. How much does it cost?",
            "I want to buy a new {thing}. | But you already have {some} of them!",
        ),
        (
            "It costs {price} coins. | That is too expensive.",
            "Only {less} coins. Is that too much? | No, that is not much.",
            "This one is special. | You say that every time.",
        ),
        (
            "I will think about it. | Do that. The shop is open until {hour}.",
            "Perhaps you are right. | Let us go and eat {food.a} instead.",
            "And it is so pretty! | Then take it, if it makes you happy.",
        ),
    ),
    (
        (
            "What is that? | It is {thing.a}.",
            "What have you got there? | This? Only {thing.a}.",
            "Is that {thing.a}? | Yes. It is new.",
        ),
        (
            "Where did you get it? | {third} gave it to me.",
            "Is it yours? | No, it belongs to {third}.",
            "Did you buy it? | No, I found it {spot}.",
        ),
        (
            "May I see it? | Yes, but be careful. Do not drop it!",
            "Can you lend it to me? | I need it until {weekday}. After that you can have it.",
            "It is heavier than I thought. | And older, too.",
        ),
        ("I will give it back in {some} minutes. | Take your time.", "I like it very much. | So do I."),
    ),
    (
        (
            "Dinner is ready! Are you hungry? | Yes, very. What is there to eat?",
            "Would you like some {drink}? | No, thanks. Is there anything to eat?",
        ),
        (
            "There are {food.pl}, and there is some {drink2}. | That smells good. Who made it?",
            "There are {some} {food.pl} left. | Is that all? Who ate the others?",
        ),
        ("It was {third}. | I should have known that!", "I did, of course. | You?"),
        (
            "Do you want some more? | Yes, please. It is delicious.",
            "Pass me your plate. | Not so much, please!",
            "Eat slowly, or you will burn your mouth. | It is too late for that.",
        ),
    ),
    (
        (
            "Can you teach me how to {skill}? | Yes, I can. It is not difficult.",
            "I cannot {skill}. | Nobody can do it on the first day.",
        ),
        (
            "How long does it take? | About {some} weeks, if you practise.",
            "What do I need? | Only time, and perhaps {food.a} when you get hungry.",
        ),
        ("Can we start now? | No, first I have to {chore}.", "When can we start? | On {weekday}, in the {daytime}."),
        (
            "Thank you! What can I do for you? | You can teach me how to {skill2}.",
            "I am so nervous. | There is no reason to be nervous.",
        ),
    ),
)
